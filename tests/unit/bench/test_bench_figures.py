"""Figures: every kind of line can be told from every other."""

from __future__ import annotations

from itertools import combinations

import pytest

from weft.errors import InterfaceError
from weft_bench.engine.acceptance import NONE
from weft_bench.engine.drafters import VARIANTS
from weft_bench.figures import COLOURS, MARKERS, look


def distance(one: str, other: str) -> float:
    """Between two colours, from 0 to 441."""
    parts = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (one, other)]
    return sum((a - b) ** 2 for a, b in zip(*parts, strict=True)) ** 0.5


def test_colours_and_markers_are_unlike_each_other() -> None:
    assert min(distance(a, b) for a, b in combinations(COLOURS, 2)) > 60
    assert len(set(MARKERS)) == len(MARKERS) == len(COLOURS)


def test_every_drafter_has_a_look_of_its_own() -> None:
    labels = [*(variant.name for variant in VARIANTS), NONE]
    looks = {label: look(label, labels) for label in labels}
    assert len(set(looks.values())) == len(labels)
    assert looks["EAGLE3 unguided"] == (*looks["EAGLE3"][:2], "--")


def test_more_kinds_than_colours_are_refused() -> None:
    labels = [str(n) for n in range(len(COLOURS) + 1)]
    with pytest.raises(InterfaceError, match="tells 8 kinds apart; these are 9"):
        look("0", labels)
