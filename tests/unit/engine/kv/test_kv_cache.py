"""What is found again of a text, and who shares it."""

from __future__ import annotations

import pytest

from support.engine.kv_pages import SIZE, TEXT, asking, began, leave, num_found
from weft.engine.kv.cache import KvManager


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
    assert (
        sequence.num_reused == 0 and manager.usage().missed_pages == 4
    )  # the first one's, one of them begun
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
    assert (usage.allocated_pages, usage.reused_pages, usage.missed_pages) == (5, 3, 4)
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
