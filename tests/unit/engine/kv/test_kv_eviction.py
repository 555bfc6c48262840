"""What goes first when pages are short, and what a request's wishes for retention change of that."""

from __future__ import annotations

import re

import pytest

from support.engine.kv_pages import SIZE, TEXT, Clock, asking, began, leave, num_found
from weft.core.retention import Retention, RetentionRange
from weft.engine.kv.cache import KvManager
from weft.errors import InputError


def test_nothing_is_taken_where_there_is_not_enough() -> None:
    manager = KvManager(6, SIZE)
    sequence = began(manager, TEXT)
    before = manager.usage()
    assert manager.begin([1] * 8, 8) is None
    assert not manager.grow(sequence, 24)
    assert manager.usage() == before and len(sequence.pages) == 4
    assert manager.grow(sequence, 20)
    assert manager.num_available == 0
    assert manager.grow(sequence, 20) and manager.grow(sequence, 1)
    manager.check()


@pytest.mark.parametrize("copies", [True, False])
def test_a_text_that_fills_all_pages_fits_again_into_its_own(copies: bool) -> None:
    manager = KvManager(5, SIZE, copy_on_partial_reuse=copies)
    text = list(range(16))
    leave(manager, text)
    again = began(manager, text)
    assert (again.num_reused, again.copies) == (15, []), "there is no page left to copy to"
    manager.end(again)
    leave(manager, text)
    other = [*text[:6], 0]
    again = began(manager, other, 16)
    assert again.num_reused == 4, "what is half of use must go"
    manager.end(again)
    leave(manager, text)
    assert began(manager, other, 12).num_reused == 4 + 2 * copies


def test_the_source_of_a_copy_is_not_given_up_for_it() -> None:
    manager = KvManager(6, SIZE)
    leave(manager, TEXT[:4])  # the one longest cached
    leave(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    sequence = began(manager, [*TEXT[:3], 9], 16)
    assert sequence.num_reused == 3
    [(source, _)] = sequence.copies
    assert source not in sequence.pages


def test_ends_go_before_beginnings_and_old_before_new() -> None:
    manager = KvManager(7, SIZE)
    old, new = [1] * 12, [2] * 12
    leave(manager, old)
    leave(manager, new)
    filler = began(manager, [3], SIZE)
    assert (num_found(manager, old), num_found(manager, new)) == (8, 12)
    manager.end(filler)
    leave(manager, [*old[:8], 3])
    assert manager.begin([3], 3 * SIZE) is not None
    assert (num_found(manager, old), num_found(manager, new)) == (8, 4), "what was found last is the newer"


def test_the_lowest_priority_goes_first() -> None:
    manager = KvManager(7, SIZE)
    high, low, plain = [1] * 8, [2] * 8, [3] * 8
    leave(manager, low, asking(0))
    leave(manager, high, asking(100))
    leave(manager, plain)
    for filled, expected in ((2, (8, 0, 8)), (4, (8, 0, 0)), (5, (4, 0, 0))):
        filler = began(manager, [9], filled * SIZE)
        assert tuple(num_found(manager, text) for text in (high, low, plain)) == expected
        manager.end(filler)


def test_a_priority_lasts_for_its_duration_after_the_last_holder() -> None:
    clock = Clock()
    manager = KvManager(5, SIZE, clock=clock)
    clock.now = 50
    leave(manager, [1] * 4, asking(100, 10))
    leave(manager, [2] * 4)
    clock.now = 59
    keeper = began(manager, [1] * 5, 8)
    clock.now = 100
    manager.end(keeper)  # held until now: ten seconds more
    clock.now = 109
    assert manager.begin([9], 12) is not None
    assert manager.usage().cached_pages == 1 and num_found(manager, [1] * 4) == 4


def test_a_priority_that_has_expired_is_the_default() -> None:
    clock = Clock()
    manager = KvManager(4, SIZE, clock=clock)
    leave(manager, [1] * 4, asking(100, 10))
    leave(manager, [2] * 4, asking(36))
    leave(manager, [3] * 4, asking(0, 5))
    clock.now = 10
    filler = began(manager, [9], 4)
    manager.end(filler)
    assert num_found(manager, [1] * 4) == 0, "all lapsed to 35 but the second; this is the oldest"
    assert num_found(manager, [3] * 4) == 4


def test_what_expired_before_it_was_held_again_stays_expired() -> None:
    clock = Clock()
    manager = KvManager(4, SIZE, clock=clock)
    leave(manager, [1] * 4, asking(100, 10))
    clock.now = 20
    leave(manager, [1] * 4)
    leave(manager, [2] * 4)
    assert manager.begin([9], 8) is not None
    assert (num_found(manager, [1] * 4), num_found(manager, [2] * 4)) == (0, 4)


def test_bookkeeping_does_not_grow_with_use() -> None:
    clock = Clock()
    manager = KvManager(8, SIZE, clock=clock)
    leave(manager, [1] * 4, asking(100, 10))
    leave(manager, [2] * 4, asking(100))
    for _ in range(100):
        leave(manager, [3] * 5, asking(90, 1000))
    assert len(manager._pool._order._leaves) <= 16 and len(manager._pool._order._expiring) <= 16
    leave(manager, [4] * 4)
    clock.now = 10
    for filled, expected in ((4, (0, 4, 4, 4)), (5, (0, 4, 4, 0)), (6, (0, 4, 0, 0)), (7, (0, 0, 0, 0))):
        filler = began(manager, [9], filled * SIZE)
        assert tuple(num_found(manager, [token] * 4) for token in (1, 2, 3, 4)) == expected
        manager.end(filler)


def test_retention_goes_by_a_pages_first_position() -> None:
    wish = Retention((RetentionRange(8, None, 90), RetentionRange(2, 6, 10, 3.0)), 50, 7.0)
    asked = [wish.at(position, 14) for position in (0, 2, 4, 6, 8, 12, 14, 16)]
    assert asked == [None, (10, 3.0), (10, 3.0), None, (90, None), (90, None), (50, 7.0), (50, 7.0)]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda: RetentionRange(-1, 4, 35), "start is -1"),
        (lambda: RetentionRange(4, 4, 35), "above start, 4"),
        (lambda: RetentionRange(0, 4, 101), "priority is 101"),
        (lambda: RetentionRange(0, 4, True), "priority is True"),
        (lambda: RetentionRange(0, 4, 35, -1), "duration_s is -1"),
        (lambda: RetentionRange(0, 4, 35, float("nan")), "duration_s is nan"),
        (lambda: Retention(decode_priority=-1), "decode_priority is -1"),
        (lambda: Retention(decode_duration_s=-2), "decode_duration_s is -2"),
        (lambda: Retention((RetentionRange(3, 9, 1), RetentionRange(0, 4, 1))), "overlap"),
        (lambda: Retention((RetentionRange(0, None, 1), RetentionRange(5, 6, 1))), "overlap"),
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(how: object, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        how()  # type: ignore[operator]
