"""What goes wrong in one slot goes wrong in that slot only; what can't be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import END, CountdownMatcher, compiled, some_guides
from support.grammar.guided_states import Raises, countdown, flags, iterate, row, state_of, verify, work_for
from weft.errors import GraphError
from weft.grammar import wrap_matcher
from weft.guided.state import GuidedShape, GuidedState


class Slow(CountdownMatcher):
    """Takes long for the mask behind its first token."""

    def fill(self, row: np.ndarray) -> None:
        if self.taken:
            work_for(0.15)
        super().fill(row)


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        ("accept", "matcher", "accepting a token: RuntimeError: planted in accept"),
        ("fill", "matcher", "filling a mask: RuntimeError: planted in fill"),
        ("empty", "dead_end", "no token may follow token 100"),
        ("padding", "dead_end", "no token may follow token 100"),
        ("slow", "time_limit", "over the limit of 100 ms; raise mask_time_limit_s"),
        ("asleep", "time_limit", "of waiting within one token, over the limit of 2000 ms"),
        ("rollback", "matcher", "rolling back drafts: RuntimeError: planted in rollback"),
        ("refuse", "refused", "does not take token 7"),
    ],
)
def test_a_failure_ends_its_slot_only(method: str, code: str, text: str) -> None:
    state = state_of(mask_time_limit_s=0.1)
    broken = wrap_matcher(Raises(method))
    iterate(state, [2, 0, 1], {0: countdown(), 1: broken, 2: countdown()})
    if method == "rollback":
        state.drafts_host[0] = 100
        state.extend(1)
    for slot in (0, 1, 2):
        verify(state, slot, [7 if method == "refuse" and slot == 1 else 100])
    state.commit()
    assert state.num_failed == 1
    assert state.status(1)[0] == code
    assert text in state.status(1)[1]
    assert [row(state, 1, position) for position in range(4)] == [[END]] * 4
    assert flags(state, 1) == [1, 1, 1, 1]
    for slot in (0, 2):
        assert state.status(slot) == ("", "")
        assert state.committed(slot) == 1
        assert row(state, slot) == [100, 101]
    iterate(state, [0, 1], {1: None})
    assert state.num_failed == 0
    assert state.status(1) == ("", "")


def test_a_matcher_that_kept_drafts_fails_where_it_is_attached_again() -> None:
    """Its masks would follow the drafts, which are not in the text."""
    state = state_of()
    broken = wrap_matcher(Raises("rollback"))
    iterate(state, [0], {0: broken})
    state.drafts_host[0, 0] = 100
    state.extend(1)
    assert state.extended(0) == 1
    iterate(state, [0], {0: None})
    assert state.status(0) == ("", "")
    iterate(state, [0, 1], {1: broken})
    code, message = state.status(1)
    assert code == "matcher"
    assert message.startswith("rolling back drafts: RuntimeError: planted in rollback")
    assert row(state, 1) == [END]
    iterate(state, [0, 1], {1: None})
    broken.reset()
    iterate(state, [0, 1], {1: broken})
    assert state.status(1) == ("", "")
    assert row(state, 1) == [100, 101]


def test_a_dead_end_behind_a_draft_refuses_that_draft() -> None:
    """Earlier rows stay masked; it is an error only where the draft is committed after all."""
    for accepted, code in [(0, ""), (1, "dead_end")]:
        state = state_of()
        iterate(state, [0], {0: wrap_matcher(Raises("empty"))})
        state.drafts_host[0, 0] = 100
        state.extend(1)
        assert state.extended(0) == 0
        assert row(state, 0, 0) == [100, 101]
        assert row(state, 0, 1) == [END]
        if accepted:
            verify(state, 0, [100, END], accepted=1)
            state.commit()
        assert state.status(0)[0] == code


def test_a_guide_without_a_first_token() -> None:
    matcher = CountdownMatcher(3, letters=())
    state = state_of()
    iterate(state, [0], {0: wrap_matcher(matcher)})
    assert state.status(0) == ("dead_end", "the grammar allows no token at all")


def test_what_was_verified_must_be_what_was_drafted() -> None:
    state = state_of()
    iterate(state, [0, 1], {0: countdown(), 1: countdown()})
    state.drafts_host[0] = 100
    state.extend(1)
    verify(state, 0, [101, 100], accepted=1)
    verify(state, 1, [100, 100], accepted=9)
    state.commit()
    assert state.status(0)[0] == state.status(1)[0] == "verified"


def test_a_draft_that_the_grammar_never_took_is_not_committed() -> None:
    state = state_of()
    iterate(state, [0], {0: countdown()})
    state.drafts_host[0] = 7
    state.extend(1)
    verify(state, 0, [7, 100], accepted=1)
    state.commit()
    assert state.status(0)[0] == "refused"
    assert state.committed(0) == 0


@pytest.mark.parametrize("token", [-1, 300, 2**40, 299])
def test_tokens_outside_the_vocabulary_are_refused(token: int) -> None:
    state = state_of()
    iterate(state, [0], {0: compiled(some_guides()[1]).matcher()})
    state.drafts_host[0] = token
    state.extend(1)
    assert state.extended(0) == 0
    verify(state, 0, [token])
    state.commit()
    assert state.status(0)[0] == "refused"


def test_the_queue_is_bounded() -> None:
    state = state_of(max_pending=3)
    for _ in range(3):
        state.push([0])
    with pytest.raises(GraphError, match="3 snapshots were pushed and none was fetched"):
        state.push([0])
    assert state.num_pending == 3


def test_what_push_refuses() -> None:
    state = state_of()
    matcher = countdown()
    for slots, attach, text in [
        ([5], {}, "out of range"),
        ([1, 1], {}, "named twice"),
        ([0], {4: matcher}, "can't be attached"),
        ([0], {0: matcher, 1: matcher}, "two slots"),
    ]:
        with pytest.raises(ValueError, match=text):
            state.push(slots, attach)
    state.push([0, 4, 4], {0: matcher})
    with pytest.raises(ValueError, match="has slot 0 already"):
        state.push([1], {1: matcher})
    assert state.num_pending == 1


@pytest.mark.parametrize(
    "arguments", [(0, 1, 10, [0]), (1, -1, 10, [0]), (1, 1, 0, [0]), (1, 1, 10, []), (1, 1, 10, [10])]
)
def test_shapes_that_make_no_state(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        GuidedState(GuidedShape(*arguments))


def test_a_slot_that_fails_while_all_are_taken() -> None:
    state = state_of(mask_time_limit_s=0.1)
    iterate(state, [0, 1], {0: wrap_matcher(Slow(8)), 1: countdown()})
    state.drafts_host[:, :2] = 100
    state.extend_through(3)
    assert state.status(0)[0] == "time_limit"
    assert state.extended(1) == 3
    assert state.counters("extend").fills == 1 + 3
