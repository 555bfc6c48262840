"""What a slot's state says, iteration by iteration."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
import torch

from support.grammar.grammars import END, CountdownMatcher, compiled, some_guides
from support.grammar.guided_states import (
    ABC_GUIDE,
    A,
    B,
    C,
    Raises,
    countdown,
    flags,
    iterate,
    row,
    state_of,
    verify,
)
from weft.grammar import wrap_matcher

pytestmark = pytest.mark.usefixtures("quick_collection")


def test_attaching_fills_row_0_and_defines_the_others() -> None:
    state = state_of()
    iterate(state, [1, 2], {1: countdown()})
    assert row(state, 1) == [100, 101]
    assert row(state, 1, 1) == row(state, 1, 3) == [END]
    assert flags(state, 1) == [1, 1, 1, 1]
    assert flags(state, 2) == [0, 0, 0, 0]
    assert state.is_guided(1)
    assert not state.is_guided(2)
    assert state.committed(1) == 0


@pytest.mark.parametrize("max_drafts", [0, 1, 3, 8])
def test_a_mask_is_filled_once(max_drafts: int) -> None:
    """K+1 fills of a row's matcher for an iteration of up to K+1 tokens, whatever is accepted."""
    state = state_of(max_drafts=max_drafts)
    iterate(state, [0, 1, 2], {0: countdown(1000), 1: countdown(1000)})
    for iteration in range(5):
        before = [state.counters(operation).fills for operation in ("extend", "commit")]
        state.drafts_host[:, :2] = 100
        if iteration:
            iterate(state, [2, 1, 0])
        for draft in range(1, max_drafts + 1):
            state.extend(draft)
        for slot in (0, 1):
            verify(state, slot, [100] * (max_drafts + 1), accepted=min(iteration, max_drafts))
        state.commit()
        after = [state.counters(operation).fills for operation in ("extend", "commit")]
        assert [b - a for a, b in zip(before, after, strict=True)] == [2 * max_drafts, 2]
    assert state.counters("fetch").fills == 2
    assert state.counters("commit").calls == 5
    assert state.counters("commit").seconds > 0


def test_unguided_slots_cost_no_fills() -> None:
    state = state_of()
    iterate(state, [0, 1, 2, 3, 4, 4])
    state.extend(1)
    state.commit()
    assert all(state.counters(operation).fills == 0 for operation in ("fetch", "extend", "commit"))


def test_a_refused_or_missing_draft_stops_extending() -> None:
    state = state_of()
    iterate(state, [0, 1], {0: countdown(), 1: countdown()})
    state.drafts_host[:, 0] = torch.tensor([100, 7, 100])
    state.drafts_host[:, 1] = torch.tensor([100, -1, 100])
    for draft in (1, 2, 3):
        state.extend(draft)
    assert state.extended(0) == state.extended(1) == 1
    for slot in (0, 1):
        assert row(state, slot, 1) == [100, 101]
        assert row(state, slot, 2) == row(state, slot, 3) == [END]
        verify(state, slot, [100, 101], accepted=1)
    state.commit()
    assert state.committed(0) == state.committed(1) == 2
    assert state.num_failed == 0


def test_a_replaced_draft_is_taken_instead() -> None:
    state = state_of()
    iterate(state, [0], {0: compiled(ABC_GUIDE).matcher()})
    state.drafts_host[:, 0] = torch.tensor([A, B, 9])
    for draft in (1, 2, 3):
        state.extend(draft)
    assert state.extended(0) == 2
    state.drafts_host[:, 0] = torch.tensor([A, A, B])
    for draft in (1, 2, 3):
        state.extend(draft)
    assert state.extended(0) == 3
    verify(state, 0, [A, A, B, C], accepted=3)
    state.commit()
    assert state.status(0) == ("", "")
    assert state.committed(0) == 4


def test_an_end_inside_the_drafts_counts_up_to_it() -> None:
    """Drafts past an end token that the device accepted do not count; the end is undone if it was refused."""
    for accepted, ended in [(0, False), (1, False), (2, True), (3, True)]:
        state = state_of()
        iterate(state, [0], {0: compiled(ABC_GUIDE).matcher()})
        state.drafts_host[:, 0] = torch.tensor([C, END, A])
        for draft in (1, 2, 3):
            state.extend(draft)
        assert state.extended(0) == 2
        assert row(state, 0, 2) == row(state, 0, 3) == [END]
        verify(state, 0, [*[C, END, A, A][:accepted], A if accepted == 0 else END], accepted=accepted)
        state.commit()
        assert state.status(0) == ("", "")
        assert state.is_terminated(0) == (ended or accepted == 1)
        assert state.committed(0) == min(accepted + 1, 2)


def test_an_ended_slot_allows_ends_and_takes_nothing() -> None:
    state = state_of()
    matcher = countdown(1)
    iterate(state, [0], {0: matcher})
    verify(state, 0, [100])
    state.commit()
    verify(state, 0, [END])
    iterate(state, [0])
    state.commit()
    assert state.is_terminated(0)
    fills = state.counters("commit").fills
    state.drafts_host.fill_(END)
    verify(state, 0, [50, 51], accepted=1)
    iterate(state, [0])
    state.extend(1)
    state.commit()
    assert state.committed(0) == 2
    assert row(state, 0) == [END]
    assert state.counters("commit").fills == fills
    assert state.status(0) == ("", "")


def test_release_and_reattaching_keep_progress() -> None:
    state = state_of()
    matcher = compiled(ABC_GUIDE).matcher()
    iterate(state, [0], {0: matcher})
    verify(state, 0, [A])
    state.commit()
    expected = row(state, 0)
    state.drafts_host[:2, 0] = torch.tensor([B, C])
    state.extend(1)
    state.extend(2)
    state.release(0)
    assert state.extended(0) == 0
    state.extend(1)
    assert state.extended(0) == 1
    iterate(state, [2], {0: None, 2: matcher})
    assert row(state, 2) == expected
    assert flags(state, 0) == [0, 0, 0, 0]
    assert matcher.slot == 2


def test_epochs() -> None:
    state = state_of()
    assert state.push([0], {0: countdown()}) == 1
    state.fetch()
    assert state.epoch == 1
    state.fetch()
    assert state.status(0) == (
        "epoch",
        "no snapshot was pushed for this iteration; push one before each launch",
    )
    assert state.push([0], {0: countdown()}, epoch=5) == 5
    state.fetch()
    assert state.status(0) == ("epoch", "the snapshot is of iteration 5, this is iteration 2")
    assert row(state, 0) == [END]
    state.push([0], {0: countdown()})
    state.fetch()
    assert state.status(0) == ("", "")
    with pytest.raises(ValueError, match="epochs only grow"):
        state.push([0], epoch=3)


def test_matchers_are_released_by_the_next_push() -> None:
    state = state_of()
    inner = CountdownMatcher(4)
    alive = weakref.ref(inner)
    iterate(state, [0], {0: wrap_matcher(inner)})
    del inner
    gc.collect()
    assert alive() is not None
    iterate(state, [0], {0: None})
    state.push([0])
    gc.collect()
    assert alive() is None


def test_matchers_can_leave_ahead_of_the_next_push() -> None:
    """At once; the slot is without a guide then, and may get another one, and the matcher another slot."""
    state = state_of()
    kept, held = countdown(), CountdownMatcher(8)
    gone = weakref.ref(held)
    iterate(state, [0, 1, 2], {0: wrap_matcher(held), 1: kept, 2: countdown()})
    del held
    with pytest.raises(ValueError, match="out of range"):
        state.vacate([4])
    state.push([0], {})
    with pytest.raises(RuntimeError, match="under way"):
        state.vacate([0])
    state.fetch()
    state.vacate([0, 1, 3])
    gc.collect()
    assert gone() is None
    assert not state.is_guided(0) and flags(state, 0) == [0, 0, 0, 0]
    state.commit()  # of nobody who is there
    assert not state.num_failed
    iterate(state, [0, 2], {0: kept, 1: None})
    assert state.is_guided(0) and row(state, 0) == [100, 101]
    assert not state.is_guided(1)


def test_a_matcher_is_free_when_its_state_is_gone() -> None:
    matcher = countdown()
    state = state_of()
    iterate(state, [0], {0: matcher})
    assert matcher.slot == 0
    del state
    gc.collect()
    assert matcher.slot == -1


def test_workers_share_a_long_phase() -> None:
    """With workers the outcome is the same; Python matchers that sleep let them overlap."""
    state = state_of(num_slots=8, workers=3)
    iterate(state, range(8), {slot: wrap_matcher(Raises("slow")) for slot in range(8)})
    for slot in range(8):
        verify(state, slot, [100])
    state.commit()
    assert [state.committed(slot) for slot in range(8)] == [1] * 8
    assert state.counters("commit").fills == 8
    assert all(row(state, slot) == [100, 101] for slot in range(8))


def test_host_tasks_run_the_operations() -> None:
    state = state_of()
    task = state.task("extend", 2)
    assert task.name == "weft.guided.extend(2)"
    assert task.owner is state
    with pytest.raises(ValueError, match=r"not in 1\.\.K"):
        state.task("extend", 4)
    with pytest.raises(ValueError, match="unknown operation: leap"):
        state.task("leap")


@pytest.mark.parametrize("max_drafts", [1, 3, 8])
def test_drafts_taken_before_cost_nothing_again(max_drafts: int) -> None:
    """K+1 fills of a row and iteration, whether drafts are taken while they are made, all at once, or both."""
    state = state_of(max_drafts=max_drafts)
    iterate(state, [0, 1], {0: countdown(1000)})
    for iteration in range(4):
        before = [state.counters(operation).fills for operation in ("extend", "commit")]
        state.drafts_host[:, 0] = 100
        if iteration:
            iterate(state, [1, 0])
        for draft in range(1, max_drafts if iteration < 2 else 1):
            state.extend(draft)
        state.extend_through(max_drafts)
        calls = state.counters("extend").calls
        state.extend_through(max_drafts)
        assert state.counters("extend").calls == calls + 1
        assert state.extended(0) == max_drafts
        verify(state, 0, [100] * (max_drafts + 1), accepted=iteration % (max_drafts + 1))
        state.commit()
        after = [state.counters(operation).fills for operation in ("extend", "commit")]
        assert [b - a for a, b in zip(before, after, strict=True)] == [max_drafts, 1]


def test_all_at_once_is_one_after_another() -> None:
    """Masks, flags and states of `extend_through` are those of single extends; also where a draft is replaced."""
    rng = random.Random(2)
    states = [state_of(max_drafts=4), state_of(max_drafts=4)]
    for state in states:
        iterate(
            state,
            [0, 1, 2],
            {slot: compiled(guide).matcher() for slot, guide in enumerate(some_guides()[1:4])},
        )
    for _ in range(40):
        drafts = torch.tensor([[rng.choice([A, B, C, END, -1, 100]) for _ in range(5)] for _ in range(4)])
        count = rng.randint(0, 4)
        for state in states:
            state.drafts_host.copy_(drafts)
        for draft in range(1, count + 1):
            states[0].extend(draft)
        states[1].extend_through(count)
        assert states[0].masks_host.equal(states[1].masks_host)
        assert states[0].token_mask_host.equal(states[1].token_mask_host)
        assert [states[0].extended(slot) for slot in range(3)] == [
            states[1].extended(slot) for slot in range(3)
        ]
        assert states[0].counters("extend").fills == states[1].counters("extend").fills
