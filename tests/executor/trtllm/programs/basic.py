"""One request, and its tokens: the least that a program of TensorRT-LLM's Executor does."""

from __future__ import annotations

import argparse

import weft.executor as trtllm


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask an executor once")
    parser.add_argument("--model_path", type=str, required=True, help="the directory of a model")
    args = parser.parse_args()

    executor = trtllm.Executor(args.model_path, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(1))
    if executor.can_enqueue_requests():
        request = trtllm.Request(input_token_ids=[1, 2, 3, 4], max_tokens=10)
        responses = executor.await_responses(executor.enqueue_request(request))
        print(responses[0].result.output_token_ids)


if __name__ == "__main__":
    main()
