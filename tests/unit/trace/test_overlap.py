"""How much of the grammar's work lies beside the model's."""

from __future__ import annotations

import pytest

from weft.trace import Slice
from weft.trace.timeline import Overlap, busy, overlap


def model(begin: float, end: float, stream: int = 1) -> Slice:
    return Slice("target_forward", "kernel", stream, 0, begin, end)


def grammar(begin: float, end: float) -> Slice:
    return Slice("weft.guided.commit", "host", 9, 0, begin, end)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([model(0, 10), grammar(10, 14)], Overlap(4, 0)),
        ([model(0, 10), grammar(8, 12)], Overlap(4, 2)),
        ([model(0, 10), model(4, 20, stream=2), grammar(2, 6)], Overlap(4, 4)),
        ([model(0, 2), model(3, 5), grammar(1, 4), grammar(4, 6)], Overlap(5, 3)),
        ([model(0, 10)], Overlap(0, 0)),
        ([], Overlap(0, 0)),
    ],
)
def test_only_what_another_stream_did_meanwhile_counts(slices: list[Slice], expected: Overlap) -> None:
    assert overlap(slices) == expected


def test_shares() -> None:
    assert Overlap(4, 1).share == 0.25 and Overlap(0, 0).share == 0


def test_times_that_touch_are_one() -> None:
    assert busy([model(3, 4), model(0, 2), model(1, 3), model(6, 7)]) == [(0, 4), (6, 7)]
