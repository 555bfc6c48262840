"""What weft does with a client's text takes a time that grows with the text's length and no faster, whatever its shape.

Thread CPU time, the least of several, of texts that double from 16 KB on: a reader that looks at a part of the text
again from each of its characters takes four times as long for each doubling.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

import pytest

from support.grammar.linear import KINDS, READERS
from support.grammar.linear_shapes import Shape, again
from weft import registry
from weft.errors import WeftError
from weft.executor import GuideType

SMALL = 16 << 10
GROWTH = 3.0
"""Of a doubling: 2, and more where the longer text leaves a cache; looking back everywhere it is 4."""
FLOOR_S = 0.003
"""What is faster than this is taken for as fast: such times say nothing of how they grow."""
MOST_S = 1.5
"""CPU time for each 64 KB; the slowest, which rewrites and checks a schema for two libraries, took more than 0.5 s on a
processor without AVX-512 that others keep busy."""
CASES = [
    pytest.param(reader, shape, id=f"{kind}: {name}")
    for kind, (reader, shapes) in READERS.items()
    for name, shape in shapes.items()
]


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A collection looks at all that the process holds, whosever turn it is."""
    gc.disable()
    yield
    gc.enable()


def cpu_s(reader: Callable[[str], object], text: str) -> float:
    start = time.thread_time()
    with contextlib.suppress(WeftError):
        reader(text)
    return time.thread_time() - start


def check(reader: Callable[[str], object], shape: Shape, doublings: int) -> None:
    """The least of up to four measurements must grow slowly enough."""
    small, large = shape(SMALL), shape(SMALL << doublings)
    least_small = least_large = float("inf")
    for _ in range(4):
        least_small = min(least_small, cpu_s(reader, small), cpu_s(reader, small))
        assert least_small <= MOST_S, f"{least_small:.4f} s for {len(small)} bytes"
        least_large = min(least_large, cpu_s(reader, large))
        growth = (least_large / max(least_small, FLOOR_S)) ** (1 / doublings)
        bound_s = MOST_S * len(large) / (64 << 10)
        if growth <= GROWTH and least_large <= bound_s:
            return
    assert growth <= GROWTH, f"{least_small:.4f} s, and {least_large:.4f} s for {2**doublings} times the text"
    assert least_large <= bound_s


@pytest.mark.parametrize(("reader", "shape"), CASES)
def test_time_grows_with_the_length(reader: Callable[[str], object], shape: Shape) -> None:
    check(reader, shape, doublings=3)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "shape"), CASES)
def test_time_grows_with_the_length_up_to_the_limit(reader: Callable[[str], object], shape: Shape) -> None:
    check(reader, shape, doublings=4)


def test_a_reader_that_looks_back_is_found() -> None:
    def looks_back(text: str) -> None:
        for at in range(0, len(text), 8):  # longer than FLOOR_S on any processor
            text[:at].upper()

    with pytest.raises(AssertionError, match="for 8 times the text"):
        check(looks_back, again("a"), doublings=3)


def test_every_kind_of_guide_has_a_reader() -> None:
    """A new one is added to the table of `linear.py`, with shapes that would make it slow."""
    kinds = {*KINDS, *registry.GUIDES}
    assert kinds <= set(READERS), "add those that are missing to READERS"
    of_types = {"JSON_SCHEMA": "json_schema", "REGEX": "regex", "EBNF_GRAMMAR": "ebnf", "LARK": "lark"}
    of_types |= {"STRUCTURAL_TAG": "structural_tag", "JSON": "json_schema", "HANDLE": "words"}
    assert set(GuideType.__members__) == set(of_types)
