"""What the ports of TensorRT-LLM's binding tests run on: weft-tiny, and transformers' model of the same checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import weft
import weft.executor as trtllm
from support.engine.oracle import Reference, greedy
from support.engine.references import load


@pytest.fixture(scope="session")
def model_path() -> Path:
    return weft.package_model_path()


@pytest.fixture
def launch(model_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes executors with positional arguments, as those tests do: `launch(config)` of weft-tiny, `launch(config, a)`
    of what stands before the type of the model. They end with the test."""
    with contextlib.ExitStack() as made:

        def build(config: Any, *source: Any) -> Any:
            executor = trtllm.Executor(*(source or (model_path,)), trtllm.ModelType.DECODER_ONLY, config)
            made.callback(executor.shutdown)
            return executor

        yield build


@pytest.fixture(scope="session")
def plain(model_path: Path) -> Callable[[Sequence[int], int], Reference]:
    """What a plain greedy loop over transformers' model says after a prompt, in so many tokens: no token ends it."""
    model = load(model_path).model
    known: dict[tuple[tuple[int, ...], int], Reference] = {}

    def say(prompt: Sequence[int], max_tokens: int) -> Reference:
        asked = tuple(int(token) for token in prompt), max_tokens
        if asked not in known:
            known[asked] = greedy(model, asked[0], None, set(), max_tokens)
        return known[asked]

    return say
