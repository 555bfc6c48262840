"""A logits post-processor that lets JSON of a schema through, for every second client; others say one token only."""

from __future__ import annotations

import argparse
import contextlib
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import xgrammar as xgr
from pydantic import BaseModel
from transformers import AutoTokenizer

import weft.executor as trtllm

ONLY = 42
TEXT = "Text: Michael Jordan was born in 1963.\nSchema: "


class AnswerFormat(BaseModel):
    last_name: str
    year_of_birth: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Force answers into a schema by their logits")
    parser.add_argument("--tokenizer_path", "-t", type=str, required=True)
    parser.add_argument("--engine_path", "-e", type=str, required=True, help="the directory of a model")
    parser.add_argument("--beam_width", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--max_tokens", type=int, default=25)
    parser.add_argument("--timeout_ms", type=int, default=10000)
    parser.add_argument("--lpp_batched", action="store_true", help="one call for a whole batch")
    return parser.parse_args()


def on_stream(stream_ptr: int) -> contextlib.AbstractContextManager[Any]:
    """The stream of the logits; on a CPU there is none to enter."""
    if not torch.cuda.is_available():
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr))


class JsonTokens:
    """Which tokens may follow an answer. It remembers nothing: every call reads the answer anew, as beams demand."""

    def __init__(self, tokenizer: Any, num_prompt: int) -> None:
        info = xgr.TokenizerInfo.from_huggingface(tokenizer)
        schema = AnswerFormat.model_json_schema()
        self._compiled = xgr.GrammarCompiler(info).compile_json_schema(schema, any_whitespace=False)
        self._end, self._num_prompt, self._size = tokenizer.eos_token_id, num_prompt, info.vocab_size

    def allowed(self, ids: list[int], client_id: int | None) -> list[int]:
        if client_id is None or client_id == 0:
            return [ONLY]
        matcher = xgr.GrammarMatcher(self._compiled, terminate_without_stop_token=True)
        for token in ids[self._num_prompt :]:
            if token != self._end and not matcher.accept_token(token):
                raise ValueError(f"{token} does not follow {ids}")
        if matcher.is_terminated():
            return [self._end]
        bits = xgr.allocate_token_bitmask(1, self._size)
        matcher.fill_next_token_bitmask(bits)
        rows = torch.zeros(1, self._size)
        xgr.apply_token_bitmask_inplace(rows, bits)
        return [int(token) for token in torch.isfinite(rows[0]).nonzero()]

    def mask(self, logits: torch.Tensor, ids: list[list[int]], client_id: int | None) -> torch.Tensor:
        """What to add to the logits [..., beams, vocabulary]: 0 or -inf."""
        mask = torch.full_like(logits, float("-inf"), device="cpu")
        for beam in range(logits.shape[-2]):
            mask[..., beam, self.allowed(ids[beam], client_id)] = 0
        return mask


def processors(tokens: JsonTokens) -> tuple[Callable[..., None], Callable[..., None]]:
    """One that is called for a request, and one that is called for a batch."""

    def one(
        req_id: int, logits: torch.Tensor, ids: list[list[int]], stream_ptr: int, client_id: int | None
    ) -> None:
        mask = tokens.mask(logits, ids, client_id)
        with on_stream(stream_ptr):
            logits += mask.to(logits.device, non_blocking=True)

    def batched(
        req_ids: list[int],
        logits_batch: list[torch.Tensor],
        ids_batch: list[list[list[int]]],
        stream_ptr: int,
        client_ids: list[int | None],
    ) -> None:
        batch = zip(logits_batch, ids_batch, client_ids, strict=True)
        masks = [tokens.mask(logits, ids, client_id) for logits, ids, client_id in batch]
        with on_stream(stream_ptr):
            for logits, mask in zip(logits_batch, masks, strict=True):
                logits += mask.to(logits.device, non_blocking=True)

    return one, batched


def main() -> None:
    args = arguments()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer_path)
    prompt = tokenizer.encode(f'{TEXT}{{"last_name": string, "year_of_birth": integer}}\nJSON: ')
    one, batched = processors(JsonTokens(tokenizer, len(prompt)))

    executor_config = trtllm.ExecutorConfig(args.beam_width)
    processing = trtllm.LogitsPostProcessorConfig()
    if args.lpp_batched:
        processing.processor_batched = batched
    else:
        processing.processor_map = {"my_logits_pp": one}
    executor_config.logits_post_processor_config = processing
    executor = trtllm.Executor(args.engine_path, trtllm.ModelType.DECODER_ONLY, executor_config)

    request_ids = []
    for i in range(args.batch_size):
        request = trtllm.Request(
            input_token_ids=prompt,
            max_tokens=args.max_tokens,
            end_id=tokenizer.eos_token_id,
            sampling_config=trtllm.SamplingConfig(args.beam_width),
            client_id=i % 2,
        )
        name = request.BATCHED_POST_PROCESSOR_NAME if args.lpp_batched else "my_logits_pp"
        request.logits_post_processor_name = name
        request_ids.append(executor.enqueue_request(request))

    answers: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    open_ids = set(request_ids)
    while open_ids:
        responses = executor.await_responses(timedelta(milliseconds=args.timeout_ms))
        if not responses:
            raise TimeoutError(f"nothing came of {sorted(open_ids)}")
        for response in responses:
            if response.has_error():
                raise RuntimeError(f"request {response.request_id}: {response.error_msg}")
            for beam, tokens in enumerate(response.result.output_token_ids):
                answers[response.request_id][beam].extend(tokens)
            if response.result.is_final:
                open_ids.remove(response.request_id)
    for i, request_id in enumerate(request_ids):
        for beam in range(args.beam_width):
            said = answers[request_id][beam][len(prompt) :]
            print(f"request {i} beam {beam} ({len(said)} tokens): {tokenizer.decode(said)}")


if __name__ == "__main__":
    main()
