"""Loops that are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.grammar.recorded_loop import Loop


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    """Makes loops and closes their recorders."""
    made: list[Loop] = []

    def make(*args: Any, **options: Any) -> Loop:
        made.append(Loop(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.recorder.close()
