"""What is found again of a text, who shares it, and what goes first when pages are short."""

from __future__ import annotations

import re

import pytest

from weft.engine.kv.cache import KvManager, KvSequence, Retention, RetentionRange
from weft.errors import InputError

SIZE = 4
TEXT = list(range(100, 114))  # three full pages and two tokens


class Clock:
    """Seconds, as the test has them pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def began(
    manager: KvManager, tokens: list[int], num_positions: int | None = None, **how: object
) -> KvSequence:
    sequence = manager.begin(tokens, num_positions or len(tokens), **how)  # type: ignore[arg-type]
    assert sequence is not None
    manager.check()
    return sequence


def leave(manager: KvManager, tokens: list[int], retention: Retention | None = None) -> None:
    """Read a text whole and end, so that it is cached."""
    sequence = began(manager, tokens, retention=retention)
    manager.store(sequence, tokens, len(tokens))
    manager.end(sequence)
    manager.check()


def num_found(manager: KvManager, tokens: list[int]) -> int:
    """How many tokens of a text are cached; all stays as it is."""
    return manager._find([*tokens, -1], margin=0)[1]


def test_what_is_read_is_in_pages_of_its_own() -> None:
    manager = KvManager(8, SIZE)
    sequence = began(manager, TEXT, 17)
    assert (sequence.num_reused, sequence.copies) == (0, [])
    assert len(set(sequence.pages)) == 5 and 0 not in sequence.pages
    assert manager.num_available == 2


def test_the_same_text_shares_full_pages_and_leaves_the_last_token_to_be_read() -> None:
    manager = KvManager(20, SIZE)
    first = began(manager, TEXT)
    manager.store(first, TEXT, len(TEXT))
    second = began(manager, TEXT)
    assert second.num_reused == 12
    assert second.pages[:3] == first.pages[:3] and second.pages[3] != first.pages[3] and second.copies == []
    third = began(manager, TEXT[:12])
    assert third.num_reused == 11, "the last token's logits are needed"
    assert third.copies == [(first.pages[2], third.pages[2])] and third.pages[:2] == first.pages[:2]


@pytest.mark.parametrize("margin", range(7))
def test_margin_is_read_anew(margin: int) -> None:
    manager = KvManager(20, SIZE)
    leave(manager, TEXT)
    sequence = began(manager, TEXT, margin=margin)
    assert sequence.num_reused == 12 - margin
    assert len(sequence.copies) == (1 if margin % SIZE else 0)
    assert began(manager, [*TEXT[:3], 9, 9], margin=margin).num_reused == max(3 - margin, 0)


def test_part_of_a_page_is_copied() -> None:
    manager = KvManager(20, SIZE)
    leave(manager, TEXT)
    other = [*TEXT[:6], 7, 7, 7]
    sequence = began(manager, other)
    assert sequence.num_reused == 6
    [(source, own)] = sequence.copies
    assert own == sequence.pages[1] != source
    assert num_found(manager, TEXT[:12]) == 12, "what was copied from can still be found"


def test_of_many_continuations_the_longest_beginning_is_found() -> None:
    manager = KvManager(100, SIZE)
    for token in range(30):
        leave(manager, [*TEXT[:4], 1, token, token, token])
    assert began(manager, [*TEXT[:4], 1, 17, 17, 3]).num_reused == 7
    assert began(manager, [*TEXT[:4], 1, 17, 3, 17]).num_reused == 6
    assert began(manager, [*TEXT[:4], 1, 99, 0]).num_reused == 5
    assert began(manager, [*TEXT[:4], 2, 17, 17]).num_reused == 4


def test_without_partial_reuse_only_whole_pages_are_found() -> None:
    manager = KvManager(20, SIZE, partial_reuse=False)
    leave(manager, TEXT)
    assert began(manager, [*TEXT[:7], 1]).num_reused == 4
    assert began(manager, TEXT[:8]).num_reused == 4, "the last token is read, and with it its page"
    assert began(manager, TEXT, margin=1).num_reused == 8


def test_without_copies_a_page_that_nobody_needs_is_taken_out() -> None:
    manager = KvManager(20, SIZE, copy_on_partial_reuse=False)
    leave(manager, TEXT)
    middle = began(manager, [*TEXT[:6], 7])
    assert (middle.num_reused, middle.copies) == (4, []), "something is cached behind that page"
    last = began(manager, [*TEXT[:11], 7])
    assert (last.num_reused, last.copies) == (11, [])
    assert began(manager, [*TEXT[:11], 7]).num_reused == 8, "it is another's now"


def test_without_reuse_nothing_is_looked_up_but_it_is_stored() -> None:
    manager = KvManager(20, SIZE)
    leave(manager, TEXT)
    sequence = began(manager, TEXT, reuse=False)
    assert sequence.num_reused == 0 and manager.usage().missed_pages == 3  # the first one's
    longer = [*TEXT, 1, 2]
    assert manager.grow(sequence, 16)
    manager.store(sequence, longer, 16)
    manager.end(sequence)
    assert num_found(manager, longer) == 16


def test_a_manager_without_reuse_keeps_nothing() -> None:
    manager = KvManager(20, SIZE, reuse=False)
    leave(manager, TEXT)
    assert manager.usage().cached_pages == 0
    assert began(manager, TEXT).num_reused == 0


def test_only_what_is_valid_is_found() -> None:
    manager = KvManager(20, SIZE)
    sequence = began(manager, TEXT)
    for num_valid, found in ((0, 0), (3, 0), (4, 4), (7, 4), (12, 12), (14, 12)):
        manager.store(sequence, TEXT, num_valid)
        assert num_found(manager, TEXT) == found


def test_two_that_read_the_same_at_once_keep_one_of_it() -> None:
    manager = KvManager(20, SIZE)
    first, second = began(manager, TEXT), began(manager, TEXT)
    manager.store(first, TEXT, 14)
    manager.store(second, TEXT, 14)
    assert manager.usage().used_pages == 8
    kept = second.pages[:3]
    manager.end(first)
    manager.check()
    assert manager.usage().used_pages == 4, "the first one's pages are free, the second one's are found"
    third = began(manager, TEXT)
    assert third.pages[:3] == kept
    manager.end(second)
    manager.end(third)
    manager.check()
    assert (manager.usage().cached_pages, manager.num_available) == (3, 19)


def test_what_was_cached_meanwhile_is_replaced_by_the_reader() -> None:
    manager = KvManager(20, SIZE)
    slow = began(manager, TEXT)
    leave(manager, [*TEXT[:12], 5, 6, 7, 8])
    available = manager.num_available
    manager.store(slow, TEXT, 12)
    manager.check()
    assert manager.num_available == available
    assert began(manager, TEXT).pages[:3] == slow.pages[:3]
    assert num_found(manager, [*TEXT[:12], 5, 6, 7, 8]) == 16, "what is behind stays"


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


def asking(priority: int, seconds: float | None = None) -> Retention:
    return Retention((RetentionRange(0, None, priority, seconds),))


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
    assert len(manager._order._leaves) <= 16 and len(manager._order._expiring) <= 16
    leave(manager, [4] * 4)
    clock.now = 10
    for filled, expected in ((4, (0, 4, 4, 4)), (5, (0, 4, 4, 0)), (6, (0, 4, 0, 0)), (7, (0, 0, 0, 0))):
        filler = began(manager, [9], filled * SIZE)
        assert tuple(num_found(manager, [token] * 4) for token in (1, 2, 3, 4)) == expected
        manager.end(filler)


def test_a_preempted_request_finds_what_it_had_decoded() -> None:
    manager = KvManager(20, SIZE)
    sequence = began(manager, TEXT)
    text = [*TEXT, 1, 2, 3, 4, 5, 6, 7]
    assert manager.grow(sequence, 24)
    manager.store(sequence, text, 20)
    manager.end(sequence)
    again = began(manager, text, 24, num_prompt=len(TEXT), retention=asking(80))
    assert again.num_reused == 20
    assert [page.priority for page in again.chain] == [80, 80, 80, 80, 35]


def test_usage_counts_what_was_found_and_missed() -> None:
    manager = KvManager(20, SIZE)
    leave(manager, TEXT)
    began(manager, [*TEXT[:10], 1, 2])
    usage = manager.usage()
    assert (usage.allocated_pages, usage.reused_pages, usage.missed_pages) == (5, 3, 3)
    assert (usage.page_size, usage.max_pages, usage.free_pages) == (SIZE, 19, 16)
    assert (usage.cached_pages, usage.used_pages) == (1, 3)


def test_misuse_is_caught() -> None:
    manager = KvManager(20, SIZE)
    sequence = began(manager, TEXT)
    manager.store(sequence, TEXT, 12)
    with pytest.raises(AssertionError):
        manager.store(sequence, TEXT, 16)  # more than there are tokens
    manager.end(sequence)
    with pytest.raises(AssertionError, match="ended"):
        manager.end(sequence)
    with pytest.raises(AssertionError):
        manager.begin([], 4)


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
