"""Names of TensorRT-LLM's: the model's type, and classes that are refused with what to do instead."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import weft.executor
from weft.errors import InputError
from weft.executor import (
    Executor,
    ExecutorConfig,
    IterationStats,
    ModelType,
    Request,
    RequestStatsPerIteration,
)
from weft.executor.types.refused import CLASSES, RENAMED


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
    (ExecutorConfig(), ExecutorConfig(), "two configs"),
    (0, ExecutorConfig(), "config is 0; give an ExecutorConfig"),
    (ModelType.DECODER_ONLY, 1, "config is 1; give an ExecutorConfig"),
]


@pytest.mark.parametrize(("first", "second", "message"), WRONG)
def test_what_is_no_config(first: Any, second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Executor(None, first, second)


@pytest.mark.parametrize("name", sorted({*CLASSES, *RENAMED}))
def test_classes_that_are_refused_say_why(name: str) -> None:
    with pytest.raises(InputError, match=f"weft.executor has no {name}"):
        getattr(weft.executor, name)
    with pytest.raises(InputError, match=f"weft.executor has no {name}"):
        exec(f"from weft.executor import {name}", {})


def test_a_refused_class_gives_the_reason_of_its_field() -> None:
    with pytest.raises(InputError, match=r"LoraConfig.*Request\.lora_config is not supported: adapters"):
        _ = weft.executor.LoraConfig
    assert not hasattr(importlib.import_module("weft.executor"), "Colour")


def test_statistics_have_json_by_either_name() -> None:
    for stats in (IterationStats(iter=4), RequestStatsPerIteration(4)):
        assert stats.to_json_str() == stats.to_json()
