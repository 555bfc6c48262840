"""How the edges of a CUDA graph are asked for: with their data, from either generation of cuda-python."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from weft.errors import DriverError
from weft.runtime.dump import _edges

PAIRS = [(1, 2), (1, 3), (2, 4), (3, 4), (4, 5)]
LOSSY_QUERY = 909


def driver(name: str, loses_data: bool = False) -> Any:
    """One that fills as many places as it was given, as CUDA's does."""

    def ask(graph: object, room: int) -> tuple[Any, ...]:
        found = (PAIRS + [(0, 0)] * room)[:room]
        befores, afters = zip(*found, strict=True)
        count = min(room, len(PAIRS))
        return (LOSSY_QUERY if loses_data else 0, list(befores), list(afters), [object()] * room, count)

    return SimpleNamespace(**{name: ask})


@pytest.mark.parametrize("room", [1, 4, 5, 6, 100])
def test_edges_are_all_there_whatever_was_guessed(room: int) -> None:
    assert _edges(driver("cuGraphGetEdges"), object(), room) == PAIRS


def test_edges_are_asked_for_with_their_data() -> None:
    both = driver("cuGraphGetEdges", loses_data=True)
    both.cuGraphGetEdges_v2 = driver("cuGraphGetEdges_v2").cuGraphGetEdges_v2
    assert _edges(both, object(), 8) == PAIRS


def test_an_error_is_the_drivers() -> None:
    with pytest.raises(DriverError, match="909"):
        _edges(driver("cuGraphGetEdges", loses_data=True), object(), 8)
