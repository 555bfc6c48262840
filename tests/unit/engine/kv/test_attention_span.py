"""What layers still see of a text, against trying every query and key."""

from __future__ import annotations

from itertools import product

import pytest

from weft.engine.kv.attention_span import AttentionSpan
from weft.ops.attention import NO_WINDOW, Window


def sees(window: Window, query: int, key: int) -> bool:
    return key <= query and (key < window.sinks or query - key < window.size - window.sinks)


@pytest.mark.parametrize("sizes", [(1,), (3,), (8,), (8, 3), (5, 16, 1)])
@pytest.mark.parametrize("sinks", [0, 1, 4, 6])
@pytest.mark.parametrize("page", [1, 4, 5])
def test_pages_that_no_query_sees(sizes: tuple[int, ...], sinks: int, page: int) -> None:
    windows = [Window(size, sinks) for size in sizes if size > sinks]
    if not windows:
        return
    span = AttentionSpan.of(windows)
    assert span is not None
    for position in range(40):
        queries = range(position, position + 30)  # those that come later see less
        seen = {
            key // page
            for window, query, key in product(windows, queries, range(position + 1))
            if sees(window, query, key)
        }
        hidden = span.hidden(position, page)
        assert {*hidden} == {*range(position // page + 1)} - seen
        assert position < span.hides(hidden.stop, page), "the next page is still seen"
        assert hidden.stop in span.hidden(span.hides(hidden.stop, page), page)


def test_a_layer_that_sees_all_keeps_all() -> None:
    assert AttentionSpan.of([Window(8), NO_WINDOW]) is None
    assert AttentionSpan.of([Window(8, 2), Window(32, 2)]) == AttentionSpan(2, 30)
