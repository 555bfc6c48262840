"""Ported: every kind of output beside what transformers' model says, and why answers end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.executor as trtllm
from support.engine.oracle import Reference, assert_same
from support.products import pairwise
from support.trtllm import PROMPT, drain, half_memory, joined, the_tokens

VOCAB, PAD, MAX_TOKENS = 1536, 2, 8
ROWS = [
    [5, 9, 13, 40],
    [43, 383, 79, 318, 71, 72],
    [1, 2, 3],
    list(range(100, 117)),
    [700, 600],
    [88, 3] * 5,
    [268],
]
"""Prompts of weft-tiny's tokens, none of them `PAD`."""


def padded() -> tuple[Any, Any]:
    """The prompts as a table of int32, filled up with `PAD`, and their lengths."""
    table = np.full((len(ROWS), max(map(len, ROWS))), PAD, dtype="int32")
    for row, tokens in zip(table, ROWS, strict=True):
        row[: len(tokens)] = tokens
    return table, np.array([len(tokens) for tokens in ROWS], dtype="int32")


class Shapes:
    """What a response must hold of a request, by what was asked for."""

    def __init__(self, streaming: bool, log_probs: bool, context: bool, generation: bool) -> None:
        self.streaming, self.log_probs, self.context, self.generation = (
            streaming,
            log_probs,
            context,
            generation,
        )

    def check(self, result: Any, num_prompt: int, num_so_far: int) -> None:
        """`num_so_far`: tokens of the answer up to and with this response."""
        if self.log_probs:
            assert [len(row) for row in result.log_probs] == [num_so_far]
            assert len(result.cum_log_probs) == 1
        else:
            assert result.log_probs is None
            assert result.cum_log_probs is None
        if self.context:
            assert list(result.context_logits.shape) == [num_prompt, VOCAB]
        else:
            assert result.context_logits is None
        if self.generation:
            streamed = [[MAX_TOKENS, 1, VOCAB], [1, 1, VOCAB]]
            possible = streamed if self.streaming else [[1, MAX_TOKENS, VOCAB]]
            assert list(result.generation_logits.shape) in possible


@pairwise
@pytest.mark.parametrize("return_generation_logits", [False, True])
@pytest.mark.parametrize("return_context_logits", [False, True])
@pytest.mark.parametrize("compute_log_probs", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_token_comparison(
    streaming: bool,
    compute_log_probs: bool,
    return_context_logits: bool,
    return_generation_logits: bool,
    launch: Callable[..., Any],
    plain: Callable[[Sequence[int], int], Reference],
) -> None:
    output_config = trtllm.OutputConfig()
    output_config.exclude_input_from_output = False
    output_config.return_log_probs = compute_log_probs
    output_config.return_generation_logits = return_generation_logits
    output_config.return_context_logits = return_context_logits
    config = trtllm.ExecutorConfig(1)
    config.batching_type = trtllm.BatchingType.INFLIGHT
    config.kv_cache_config = trtllm.KvCacheConfig(False, free_gpu_memory_fraction=0.3)
    if return_generation_logits:
        config.gather_generation_logits = True
    executor = launch(config)

    table, lengths = padded()
    requests = [
        trtllm.Request(
            row[:length],  # an array of int32
            max_tokens=MAX_TOKENS,
            streaming=streaming,
            sampling_config=trtllm.SamplingConfig(1, num_return_sequences=2 if i % 5 == 1 else 1),
            output_config=output_config,
            end_id=-1,
        )
        for i, (row, length) in enumerate(zip(table, lengths, strict=True))
    ]
    numbers = executor.enqueue_requests(requests)
    told = drain(executor, numbers, "any")

    shapes = Shapes(streaming, compute_log_probs, return_context_logits, return_generation_logits)
    for number, request, prompt in zip(numbers, requests, ROWS, strict=True):
        num_input = 0 if streaming else len(prompt)
        so_far = dict.fromkeys(range(request.sampling_config.num_return_sequences), 0)
        for result in told[number]:
            so_far[result.sequence_index] += len(result.output_token_ids[0])
            shapes.check(result, len(prompt), so_far[result.sequence_index] - num_input)
        sequences = joined(told[number])
        assert sequences.keys() == so_far.keys()
        for tokens in sequences.values():
            assert tokens[:num_input] == prompt[:num_input]
            assert len(tokens) == num_input + MAX_TOKENS
            assert_same(tokens[num_input:], plain(prompt, MAX_TOKENS), f"the answer to {prompt}")


@pytest.mark.parametrize("streaming", [False, True])
def test_finish_reason(streaming: bool, launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    first = the_tokens(executor, trtllm.Request(PROMPT, max_tokens=5))[len(PROMPT) :]
    assert len(set(first)) == 5
    endings: list[tuple[dict[str, Any], Any]] = [
        ({}, trtllm.FinishReason.LENGTH),
        ({"end_id": first[1]}, trtllm.FinishReason.END_ID),
        ({"stop_words": [first[1:3]]}, trtllm.FinishReason.STOP_WORDS),
    ]
    numbers = executor.enqueue_requests(
        [
            trtllm.Request(
                PROMPT,
                max_tokens=5,
                streaming=streaming,
                sampling_config=trtllm.SamplingConfig(1),
                **ending,
            )
            for ending, _ in endings
        ]
    )
    told = drain(executor, numbers, "any")
    for number, (_, reason) in zip(numbers, endings, strict=True):
        *before, last = [result.finish_reasons for result in told[number]]
        assert last == [reason]
        assert all(reasons == [trtllm.FinishReason.NOT_FINISHED] for reasons in before)
        assert bool(before) == streaming
