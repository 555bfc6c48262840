"""Names of TensorRT-LLM's: the model's type, and classes that are refused with what to do instead."""

from __future__ import annotations

import importlib
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import weft.executor
from weft import package_model_path
from weft.errors import InputError, ModelError, WeftError
from weft.executor import (
    Executor,
    ExecutorConfig,
    IterationStats,
    ModelType,
    Request,
    RequestStats,
    RequestStatsPerIteration,
    SamplingConfig,
    SpecDecodingStats,
)
from weft.executor.types.refused import RENAMED


def test_the_models_type_may_stand_before_the_config() -> None:
    config = ExecutorConfig(1, max_batch_size=3)
    with Executor(None, ModelType.DECODER_ONLY, config) as executor:
        assert executor.config == config
        number = executor.enqueue_request(Request([0, 292], 2))
        assert not executor.await_responses(number)[0].has_error()
    with Executor(None, ModelType.DECODER_ONLY) as executor:
        assert executor.config == ExecutorConfig()


WRONG: list[tuple[Any, Any, str]] = [
    (ModelType.ENCODER_DECODER, None, "ENCODER_DECODER is not supported: models have no encoder"),
    (ModelType.ENCODER_ONLY, ExecutorConfig(), "give ModelType.DECODER_ONLY"),
    (ExecutorConfig(), ExecutorConfig(), "3 arguments are given by position"),
    (0, ExecutorConfig(), "model_type is 0; give ModelType.DECODER_ONLY"),
    (ModelType.DECODER_ONLY, 1, "executor_config is 1; give an ExecutorConfig"),
]


@pytest.mark.parametrize(("first", "second", "message"), WRONG)
def test_what_is_no_config(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Executor(None, first, second)


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_names_that_are_called_otherwise_say_so(name: str) -> None:
    with pytest.raises(InputError, match=f"weft.executor has no {name}"):
        getattr(weft.executor, name)
    assert not hasattr(weft.executor, name) and getattr(weft.executor, name, None) is None
    with pytest.raises(ImportError, match=name):
        exec(f"from weft.executor import {name}", {})
    assert not hasattr(importlib.import_module("weft.executor"), "Colour")


def test_names_of_earlier_versions_say_todays() -> None:
    with pytest.raises(InputError, match=r"Request\.max_new_tokens has a newer name: max_tokens"):
        Request([1], max_new_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"SamplingConfig\.random_seed has a newer name: seed"):
        SamplingConfig().random_seed = 3  # type: ignore[attr-defined]


def test_the_arguments_have_tensorrt_llms_names() -> None:
    path, config = package_model_path(), ExecutorConfig(max_batch_size=2)
    forms: list[Executor] = [
        Executor(model_path=path, model_type=ModelType.DECODER_ONLY, executor_config=config),
        Executor(path, model_type=ModelType.DECODER_ONLY, executor_config=config),
        Executor(path, executor_config=config),
        Executor(path, config=config),
        Executor(model=path, executor_config=config),
    ]
    for executor in forms:
        with executor:
            assert executor.config == config
            number = executor.enqueue_request(request=Request([0, 292], 2))
            while not executor.get_num_responses_ready(id=number):
                time.sleep(0.01)
            assert [len(one) for one in executor.await_responses(ids=[number], timeout=timedelta(1))] == [1]
            other = executor.enqueue_request(Request([0, 292], 2))
            assert len(executor.await_responses(id=other)) == 1
            executor.cancel_request(id=other)
            assert executor.can_enqueue_requests()
        assert not executor.can_enqueue_requests()


WRONG_ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((None,), {"model_path": "a"}, "model is given twice"),
    ((), {"colour": 1}, "Executor has no argument 'colour'; it has config_json"),
    ((None, None, None, None), {}, "4 arguments are given by position; the forms are"),
    ((), {"encoder_model_path": "a", "decoder_model_path": "b"}, "encoder and a decoder is not supported"),
    (("no such folder",), {}, "File does not exist: .*no such folder"),
    ((b"x" * 100, "{}", ModelType.DECODER_ONLY), {}, "engine_buffer is no safetensors file"),
]


@pytest.mark.parametrize(("given", "named", "message"), WRONG_ARGUMENTS)
def test_arguments_that_are_wrong(given: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(WeftError, match=message):
        Executor(*given, **named)


def test_an_engine_of_tensorrt_llms_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.engine").touch()
    with pytest.raises(
        ModelError, match=r"an engine built by TensorRT-LLM.*give the Hugging Face checkpoint"
    ):
        Executor(tmp_path)


def test_statistics_have_json_with_either_keys() -> None:
    stats = IterationStats(iter=4, iter_latency_ms=2.5, specdec_stats=SpecDecodingStats(3))
    assert IterationStats.from_json(stats.to_json()) == stats
    camel = json.loads(stats.to_json_str())
    assert (camel["iter"], camel["iterLatencyMS"]) == (4, 2.5)
    assert camel["newActiveRequestsQueueLatencyMS"] == 0 and camel["gpuMemUsage"] == 0
    assert camel["specDecodingStats"]["numDraftTokens"] == 3 and camel["kvCacheStats"] is None
    requests = json.loads(RequestStatsPerIteration(4, [RequestStats(7)]).to_json_str())
    assert (
        requests["requestStats"][0] | {"id": 7, "stage": "QUEUED", "disServingStats": None}
        == requests["requestStats"][0]
    )
    assert requests["requestStats"][0]["avgNumDecodedTokensPerIter"] == 0
