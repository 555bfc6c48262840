"""Ported: executors are made, asked, waited for in every form, and shut down."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
import weft.executor as trtllm
from support.trtllm import (
    PATIENCE_S,
    PROMPT,
    WAIT,
    Form,
    answer_length,
    drain,
    half_memory,
    joined,
    the_tokens,
)


def the_error(executor: Any, number: int) -> str:
    """The text of a request's error response."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for response in executor.await_responses(number, WAIT):
            assert response.has_error(), "a result where an error was to come"
            return str(response.error_msg)
    raise AssertionError("nothing came")


VOCAB = 1536
"""Of weft-tiny."""


def test_executor_valid_ctor(launch: Callable[..., Any]) -> None:
    cache = trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5)
    executor = launch(trtllm.ExecutorConfig(1, kv_cache_config=cache))
    assert executor.can_enqueue_requests() is True


def test_executor_from_memory(launch: Callable[..., Any], model_path: Path) -> None:
    engine_buffer = (model_path / "model.safetensors").read_bytes()
    json_config_str = (model_path / "config.json").read_text()
    executor = launch(half_memory(), engine_buffer, json_config_str)
    same = launch(half_memory())
    assert the_tokens(executor, trtllm.Request(PROMPT, max_tokens=5)) == the_tokens(
        same, trtllm.Request(PROMPT, max_tokens=5)
    )


def test_executor_invalid_ctor(launch: Callable[..., Any]) -> None:
    config = half_memory()
    with pytest.raises(Exception, match="File does not exist"):
        launch(config, "Bla")


def test_shutdown(launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=False, sampling_config=trtllm.SamplingConfig())
    assert executor.can_enqueue_requests() is True
    number = executor.enqueue_request(request)
    executor.shutdown()
    assert executor.can_enqueue_requests() is False
    refused: list[Callable[[], Any]] = [
        lambda: executor.enqueue_request(request),
        executor.await_responses,
        executor.get_latest_iteration_stats,
        executor.get_latest_request_stats,
        executor.get_latest_debug_tensors,
        lambda: executor.cancel_request(number),
        lambda: executor.get_num_responses_ready(number),
    ]
    for call in refused:
        with pytest.raises(weft.ExecutorError):
            call()


def test_embedding_bias(launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    wanted = 10
    bias = torch.zeros(VOCAB)
    bias[wanted] = torch.finfo(torch.float32).max
    output_config = trtllm.OutputConfig()
    output_config.exclude_input_from_output = False
    request = trtllm.Request(
        PROMPT,
        max_tokens=5,
        streaming=False,
        sampling_config=trtllm.SamplingConfig(),
        output_config=output_config,
        embedding_bias=bias,
    )
    assert the_tokens(executor, request) == [*PROMPT, *[wanted] * 5]


@pytest.mark.parametrize("streaming", [False, True])
def test_single_request(streaming: bool, launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    output_config = trtllm.OutputConfig()
    output_config.exclude_input_from_output = False
    request = trtllm.Request(
        PROMPT,
        max_tokens=5,
        streaming=streaming,
        sampling_config=trtllm.SamplingConfig(),
        output_config=output_config,
    )
    assert len(the_tokens(executor, request)) == answer_length(len(PROMPT), 5, streaming)
    for statistics in (executor.get_latest_iteration_stats, executor.get_latest_request_stats):
        assert isinstance(statistics(), list)
    assert list(executor.get_latest_debug_tensors()) == []


def test_single_request_lora(launch: Callable[..., Any]) -> None:
    """Adapters are not there yet: the request is taken and answered with an error that names them."""
    config = trtllm.ExecutorConfig(
        1,
        peft_cache_config=trtllm.PeftCacheConfig(num_put_workers=4, num_ensure_workers=4),
        kv_cache_config=trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5),
    )
    executor = launch(config)
    weights = torch.tensor(np.zeros((1, 1, 8), dtype=np.float32)).half()
    adapter = trtllm.LoraConfig(0, weights, torch.tensor(np.zeros((1, 1, 3), dtype=np.int32)))
    request = trtllm.Request(
        PROMPT,
        max_tokens=5,
        streaming=False,
        sampling_config=trtllm.SamplingConfig(),
        output_config=trtllm.OutputConfig(),
        lora_config=adapter,
    )
    assert "LoRA" in the_error(executor, executor.enqueue_request(request))
    assert len(the_tokens(executor, trtllm.Request(PROMPT, max_tokens=5))) == len(PROMPT) + 5


def many(
    num_requests: int, seed: int, streaming: bool, end_id: int | None = -1
) -> list[tuple[Any, int, int]]:
    """Requests of random lengths, every fifth in two sequences: each with its number of sequences, and the tokens of
    the answer to one."""
    rng = random.Random(seed)
    asked = []
    for i in range(num_requests):
        num_prompt, max_tokens, sequences = rng.randint(1, 20), rng.randint(1, 20), 2 if i % 5 == 1 else 1
        request = trtllm.Request(
            [1] * num_prompt,
            max_tokens=max_tokens,
            streaming=streaming,
            sampling_config=trtllm.SamplingConfig(num_return_sequences=sequences),
            output_config=trtllm.OutputConfig(),
            **({} if end_id is None else {"end_id": end_id}),
        )
        asked.append((request, sequences, answer_length(num_prompt, max_tokens, streaming)))
    return asked


def ask_many(executor: Any, streaming: bool, form: Form) -> None:
    asked = {executor.enqueue_request(request): rest for request, *rest in many(20, 11, streaming)}
    told = drain(executor, list(asked), form)
    for number, (sequences, length) in asked.items():
        tokens = joined(told[number])
        assert [len(tokens[i]) for i in range(sequences)] == [length] * sequences
        assert len(tokens) == sequences


@pytest.mark.parametrize("streaming", [False, True])
def test_multi_request(streaming: bool, launch: Callable[..., Any]) -> None:
    ask_many(launch(half_memory()), streaming, "any")


@pytest.mark.parametrize("streaming", [False, True])
def test_multi_request_with_ids(streaming: bool, launch: Callable[..., Any]) -> None:
    ask_many(launch(half_memory()), streaming, "several")


@pytest.mark.parametrize("streaming", [False, True])
def test_get_num_responses_ready(streaming: bool, launch: Callable[..., Any]) -> None:
    """Nobody gives an end token: each sequence of a stream is `max_tokens` responses."""
    executor = launch(half_memory())
    expected: dict[int, int] = {}
    for request, sequences, _ in many(random.Random(3).randint(1, 50), 5, streaming, end_id=None):
        number = executor.enqueue_request(request)
        expected[number] = (request.max_tokens if streaming else 1) * sequences
    until = time.monotonic() + 60
    while (ready := {number: executor.get_num_responses_ready(number) for number in expected}) != expected:
        assert time.monotonic() < until, (ready, expected)
        time.sleep(0.001)
    assert executor.get_num_responses_ready() == sum(expected.values())


def test_gpt_executor_timed_out(launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    assert executor.get_num_responses_ready() == 0
    assert executor.await_responses(timedelta(milliseconds=10)) == []


def test_single_request_invalid_inputs(launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=True)
    request.embedding_bias = torch.ones(1)
    number = executor.enqueue_request(request)
    assert "embedding bias shape is not as expected" in the_error(executor, number)


def test_wakeup(launch: Callable[..., Any]) -> None:
    """Whoever waits without end is woken by the shutdown."""
    executor = launch(
        trtllm.ExecutorConfig(kv_cache_config=trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5))
    )
    stop, idle = threading.Event(), threading.Event()
    told: list[int] = []

    def listen() -> None:
        while not stop.is_set():
            responses = executor.await_responses(timeout=None)
            if stop.is_set():
                return
            told.extend(token for one in responses for token in one.result.output_token_ids[0])
            if len(told) == 5:
                idle.set()

    thread = threading.Thread(target=listen)
    thread.start()
    executor.enqueue_request(trtllm.Request(input_token_ids=PROMPT, max_tokens=5, streaming=True))
    assert idle.wait(timeout=60)
    time.sleep(0.2)  # for the thread to wait again
    assert thread.is_alive()
    stop.set()
    executor.shutdown()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert len(told) == 5
