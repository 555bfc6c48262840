"""Ported: logits post-processors, of one request and of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

import weft.executor as trtllm
from support.trtllm import PROMPT, answer_length, drain, half_memory, joined, the_tokens


def on_stream(stream_ptr: int) -> contextlib.AbstractContextManager[Any]:
    """The stream that a logits post-processor is given: torch's on a GPU, nothing to enter on the CPU."""
    if not torch.cuda.is_available():
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr))


ONLY, CLIENT = 42, 123


def say_only(logits: torch.Tensor, stream_ptr: int) -> None:
    with on_stream(stream_ptr):
        logits[:] = float("-inf")
        logits[..., ONLY] = 0


def test_logits_post_processor(launch: Callable[..., Any]) -> None:
    clients: list[int | None] = []

    def logits_post_processor(
        req_id: int, logits: torch.Tensor, ids: list[list[int]], stream_ptr: int, client_id: int | None
    ) -> None:
        clients.append(client_id)
        say_only(logits, stream_ptr)

    config = half_memory()
    config.logits_post_processor_config = trtllm.LogitsPostProcessorConfig(
        {"my_logits_pp": logits_post_processor}
    )
    executor = launch(config)
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=False, client_id=CLIENT)
    request.logits_post_processor_name = "my_logits_pp"
    assert the_tokens(executor, request) == [*PROMPT, *[ONLY] * 5]
    assert set(clients) == {CLIENT}


def test_logits_post_processor_batched(launch: Callable[..., Any]) -> None:
    clients: list[int | None] = []

    def logits_post_processor_batched(
        req_id_batch: list[int],
        logits_batch: list[torch.Tensor],
        ids_batch: list[list[list[int]]],
        stream_ptr: int,
        client_id_batch: list[int | None],
    ) -> None:
        clients.extend(client_id_batch)
        for logits in logits_batch:
            say_only(logits, stream_ptr)

    config = half_memory()
    config.logits_post_processor_config = trtllm.LogitsPostProcessorConfig(
        None, logits_post_processor_batched
    )
    executor = launch(config)
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=False, client_id=CLIENT)
    request.logits_post_processor_name = request.BATCHED_POST_PROCESSOR_NAME
    numbers = [executor.enqueue_request(request) for _ in range(4)]
    told = drain(executor, numbers, "any")
    for number in numbers:
        (tokens,) = joined(told[number]).values()
        assert len(tokens) == answer_length(len(PROMPT), 5, streaming=False)
        assert tokens[len(PROMPT) :] == [ONLY] * 5
    assert set(clients) == {CLIENT}
