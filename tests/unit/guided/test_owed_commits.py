"""Commits that an iteration leaves to the next one's fetch, or to the host."""

from __future__ import annotations

from support.grammar.guided_states import countdown, state_of, verify
from weft.guided.flight import operations


def test_an_owed_commit_comes_with_the_next_fetch_or_before_it() -> None:
    """Once; not for an iteration before it, and not again."""
    state = state_of(max_drafts=0)
    first = state.push([0, 1], {0: countdown(), 1: countdown()})
    state.fetch(owes_commit=True)
    for slot in (0, 1):
        verify(state, slot, [100])
    state.commit_owed(first - 1)
    assert (state.committed(0), state.counters("commit").calls) == (0, 0)
    state.commit_owed(first)
    state.commit_owed(first)
    assert (state.committed(0), state.counters("commit").calls) == (1, 1)
    second = state.push([1])
    state.fetch(owes_commit=True)
    verify(state, 1, [100])
    state.push([0])
    state.fetch()  # whose slots are others
    assert (state.committed(0), state.committed(1), state.counters("commit").calls) == (1, 2, 2)
    state.commit_owed(second + 1)
    assert state.counters("commit").calls == 2


def test_an_iteration_without_a_snapshot_owes_nothing() -> None:
    """What the one before owes is committed all the same."""
    state = state_of(max_drafts=0)
    epoch = state.push([0], {0: countdown()})
    state.fetch(owes_commit=True)
    verify(state, 0, [100])
    state.fetch(owes_commit=True)
    assert (state.committed(0), state.status(0)[0]) == (1, "epoch")
    state.commit_owed(epoch + 1)
    assert state.counters("commit").calls == 1


def test_what_a_failed_iteration_owes_is_forgotten() -> None:
    """And not what a later one owes."""
    state = state_of(max_drafts=0)
    for later in (0, 1):
        epoch = state.push([0], {0: countdown()} if not later else {})
        state.fetch(owes_commit=True)
        verify(state, 0, [100])
        state.forget_owed(epoch - later)
        state.commit_owed(epoch)
        assert state.committed(0) == later


def test_an_owed_commit_records_guided_slots_alone() -> None:
    """The next iteration may write what others verified by then."""
    state = state_of(max_drafts=0)
    state.record(1 << 16)
    for owes_commit in (False, True):
        epoch = state.push([0, 1], {} if owes_commit else {0: countdown()})
        state.fetch(owes_commit)
        for slot in (0, 1):
            verify(state, slot, [100])
        if owes_commit:
            state.commit_owed(epoch)
        else:
            state.commit()
    commits = [each for each in operations(state.recorded()) if each.name == "commit"]
    assert [[entry.slot for entry in each.entries] for each in commits] == [[0, 1], [0]]
    assert commits[-1].entries[0].inputs == (0, 100)
