"""An executor of weft-tiny on the CPU, and what the tests ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.executor import GUIDED
from weft.executor import Executor, ExecutorConfig


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    config = ExecutorConfig(
        guided_decoding_config=GUIDED, max_batch_size=8, max_seq_len=512, request_stats_max_iterations=1000
    )
    with Executor(None, config, device="cpu") as executor:
        yield executor


@pytest.fixture
def make() -> Iterator[Callable[..., Executor]]:
    """Makes executors of weft-tiny and shuts them down."""
    made: list[Executor] = []

    def build(**config: Any) -> Executor:
        config.setdefault("max_batch_size", 2)
        config.setdefault("max_seq_len", 512)
        made.append(Executor(None, ExecutorConfig(**config), device="cpu"))
        return made[-1]

    yield build
    for one in made:
        one.shutdown()
