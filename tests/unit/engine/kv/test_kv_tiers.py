"""What goes to the host, what is found there, and texts that end in the middle of a page."""

from __future__ import annotations

import pytest

from support.engine.kv_pages import SIZE, TEXT, Clock, asking, began
from weft.core.retention import Retention
from weft.engine.kv.cache import KvManager
from weft.engine.kv.pool import Move, MoveKind

COPY, OFFLOAD, ONBOARD = MoveKind.COPY, MoveKind.OFFLOAD, MoveKind.ONBOARD


def manager_of(num_pages: int, num_host_pages: int, **how: object) -> KvManager:
    return KvManager(num_pages + 1, SIZE, num_host_pages=num_host_pages, **how)  # type: ignore[arg-type]


def leave(manager: KvManager, tokens: list[int], retention: Retention | None = None) -> list[int]:
    """Read a text whole and end; its pages."""
    sequence = began(manager, tokens, retention=retention)
    pages = sequence.pages
    manager.end(sequence, tokens, len(tokens))
    manager.check()
    return pages


def fill(manager: KvManager) -> None:
    """Need every page of the device for a moment."""
    manager.end(began(manager, [-1], manager.num_available * SIZE))
    manager.check()


def test_what_must_go_is_copied_to_the_host_and_back() -> None:
    manager = manager_of(3, 3)
    pages = leave(manager, TEXT[:12])
    fill(manager)
    assert manager.take_moves() == [Move(OFFLOAD, page, host) for host, page in enumerate(reversed(pages))]
    usage = manager.usage()
    assert (usage.cached_pages, usage.host_pages, usage.max_host_pages) == (0, 3, 3)
    again = began(manager, [*TEXT[:8], 7])
    assert again.num_reused == 8
    assert manager.take_moves() == [Move(ONBOARD, 2, again.pages[0]), Move(ONBOARD, 1, again.pages[1])]
    assert manager.usage().host_pages == 1, "what comes after is still there"
    assert manager.usage().onboarded_pages == 2


def test_a_part_of_a_page_on_the_host_is_copied_to_an_own_page() -> None:
    manager = manager_of(3, 3)
    leave(manager, TEXT[:8])
    fill(manager)
    manager.take_moves()
    again = began(manager, [*TEXT[:6], 7, 7, 7])
    assert (again.num_reused, again.copies) == (6, [])
    assert [move.kind for move in manager.take_moves()] == [ONBOARD, ONBOARD]
    assert manager.usage().host_pages == 1, "it stays where it is"


@pytest.mark.parametrize(("least", "kept"), [(0, 3), (20, 3), (21, 2), (35, 2), (36, 1), (81, 0)])
def test_what_is_worth_little_does_not_go_to_the_host(least: int, kept: int) -> None:
    manager = manager_of(3, 3, offload_min_priority=least)
    for token, priority in ((1, 20), (2, 35), (3, 80)):
        leave(manager, [token] * 4, asking(priority))
    fill(manager)
    assert manager.usage().host_pages == kept


def test_on_the_host_the_lowest_priority_goes_first_and_then_the_oldest() -> None:
    manager = manager_of(1, 2)
    for token, priority in ((1, 80), (2, 35), (3, 35), (4, 35)):
        leave(manager, [token] * 4, asking(priority))
    fill(manager)
    found = [token for token in (1, 2, 3, 4) if began_and_ended(manager, [token] * 4)]
    assert found == [1, 4]


def began_and_ended(manager: KvManager, tokens: list[int]) -> bool:
    sequence = manager.begin([*tokens], 4)
    assert sequence is not None
    is_found = sequence.num_reused > 0
    manager.end(sequence)
    return is_found


def test_a_priority_expires_on_the_host_too() -> None:
    clock = Clock()
    manager = manager_of(1, 2, clock=clock)
    leave(manager, [1] * 4, asking(80, 10))
    leave(manager, [2] * 4, asking(36))
    leave(manager, [3] * 4)
    clock.now = 10
    fill(manager)
    assert [began_and_ended(manager, [token] * 4) for token in (1, 2, 3)] == [False, True, True]


def test_an_expired_priority_is_not_worth_the_host() -> None:
    clock = Clock()
    manager = manager_of(2, 2, clock=clock, offload_min_priority=40)
    leave(manager, [1] * 4, asking(80, 10))
    leave(manager, [2] * 4, asking(80, 20))
    clock.now = 15
    fill(manager)
    assert manager.usage().host_pages == 1


def test_what_can_t_be_kept_takes_with_it_what_comes_after() -> None:
    manager = manager_of(3, 3)
    wish = Retention((asking(0).ranges[0],), decode_priority=35)
    sequence = began(manager, TEXT[:12], retention=wish, num_prompt=4)
    manager.end(sequence, TEXT[:12], 12)
    fill(manager)
    assert manager.usage().host_pages == 0, (
        "the first page is not worth it, and the others are not found without it"
    )


def test_a_text_that_goes_on_takes_the_page_in_which_it_ended() -> None:
    manager = KvManager(20, SIZE)
    pages = leave(manager, TEXT[:10])
    again = began(manager, TEXT)
    assert (again.num_reused, again.copies, again.pages[:3]) == (10, [], pages)
    assert again.counts == (1, 1, 3, 1)
    other = began(manager, TEXT)
    assert other.num_reused == 8, "it is another's now"


def test_a_page_in_which_a_text_ended_is_copied_where_another_goes_on_otherwise() -> None:
    manager = KvManager(20, SIZE)
    leave(manager, TEXT[:11])
    again = began(manager, [*TEXT[:9], 7])
    assert again.num_reused == 9 and len(again.copies) == 1
    assert began(manager, TEXT).num_reused == 11


def test_of_texts_that_end_in_one_page_the_longest_is_kept() -> None:
    manager = KvManager(20, SIZE)
    first, second = began(manager, TEXT), began(manager, TEXT)
    third, fourth = began(manager, TEXT), began(manager, TEXT)
    for sequence, valid, cached in ((first, 6, 2), (second, 7, 2), (third, 5, 2), (fourth, 8, 2)):
        manager.end(sequence, TEXT, valid)
        manager.check()
        assert manager.usage().cached_pages == cached
    assert began(manager, TEXT).num_reused == 8


def test_without_partial_reuse_the_page_in_which_a_text_ends_is_not_kept() -> None:
    manager = KvManager(20, SIZE, partial_reuse=False)
    leave(manager, TEXT)
    assert manager.usage().cached_pages == 3


def test_counts_are_of_the_pages_a_text_begins_with() -> None:
    manager = KvManager(4, 32)
    fresh = began(manager, [1, 2, 3, 4], 64)
    assert fresh.counts == (1, 1, 0, 1)
    answered = [1, 2, 3, 4, *range(10, 42)]
    manager.end(fresh, answered, 35)
    again = began(manager, [*answered, 1, 2, 3, 4], 80)
    assert (again.counts, again.num_reused) == ((0, 0, 2, 0), 35)
    manager.end(again)
    assert began(manager, [5], 96).counts == (1, 0, 0, 1), "every page was handed out before"


def test_nothing_is_found_of_what_was_there_when_moves_failed() -> None:
    manager = manager_of(6, 6)
    leave(manager, [1] * 8)
    fill(manager)
    running = began(manager, [*TEXT[:12], 1])
    manager.store(running, TEXT[:12], 12)
    sharing = began(manager, [*TEXT[:8], 1])
    manager.discard_cache()
    manager.check()
    assert (manager.usage().host_pages, manager.usage().cached_pages) == (0, 0)
    assert began_and_ended(manager, [*TEXT[:3]]) is False
    manager.store(running, [*TEXT[:12], 1, 1, 1, 1], 16)
    manager.check()
    for sequence in (running, sharing):
        manager.end(sequence, [*TEXT[:12], 1, 1, 1, 1], 13 if sequence is running else 9)
        manager.check()
    assert manager.num_available == 6 and manager.usage().cached_pages == 0
    leave(manager, TEXT[:8])
    assert began(manager, TEXT[:8]).num_reused == 7
