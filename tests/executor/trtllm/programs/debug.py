"""Looks at a tensor of the model while it decodes: from the executor's own memory, or from files that it writes."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import weft.executor as trtllm

MAX_TOKENS = 2
WRITTEN = Path("tllm_debug", "PP_1", "TP_1")
"""In the system's folder of temporary files: one folder for each iteration, one file for each tensor."""


def print_written() -> None:
    folder = Path(tempfile.gettempdir()) / WRITTEN
    if not folder.is_dir():
        print("nothing was written")
    for file in sorted(folder.glob("*/*.npy")):
        print(file.parent.name, file.name, np.load(file).tolist())


def print_kept(executor: Any) -> None:
    for kept in executor.get_latest_debug_tensors():
        for name, tensor in kept.debug_tensors.items():
            print("iteration", kept.iter, name, tensor.tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description="See how long an executor's sequences are")
    parser.add_argument("--model_path", type=str, required=True, help="the directory of a model")
    parser.add_argument("--dump_tensors", action="store_true", help="have tensors written to files")
    args = parser.parse_args()

    debug_config = trtllm.DebugConfig(
        debug_tensor_names=["sequence_length"],
        debug_tensors_max_iterations=0 if args.dump_tensors else MAX_TOKENS,
    )
    config = trtllm.ExecutorConfig(1, debug_config=debug_config)
    executor = trtllm.Executor(args.model_path, trtllm.ModelType.DECODER_ONLY, config)
    if executor.can_enqueue_requests():
        request = trtllm.Request(input_token_ids=[1, 2, 3, 4], max_tokens=MAX_TOKENS)
        responses = executor.await_responses(executor.enqueue_request(request))
        print(responses[0].result.output_token_ids)
    if args.dump_tensors:
        print_written()
    else:
        print_kept(executor)


if __name__ == "__main__":
    main()
