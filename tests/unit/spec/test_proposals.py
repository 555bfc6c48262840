"""Proposals by slot: which slots, in which order, up to where; and that they leave the grammar's state alone."""

from __future__ import annotations

import pytest
import torch

from support.engine.proposing import FORCED, Iterations, X, Y, Z
from support.grammar.grammars import END, CountdownMatcher, allowed, compiled
from weft.errors import InputError
from weft.grammar import Guide, Matcher, wrap_matcher
from weft.runtime.cpu import CpuRuntime


def test_n_grams_go_on_behind_forced_text() -> None:
    it = Iterations()
    it.proposals.open(0, [Y, Z, 40, X, Y, Z, 41])
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, -1, -1]}
    it.proposals.set_guided(False)
    it.proposals.open(0, [Y, Z, 40, X, Y, Z, 41])
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, 41, X]}
    it.proposals.set_guided(True)
    it.proposals.open(0, [Y, Z, 3 + ord("b"), X, 40, Y, Z, 41])
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, 3 + ord("b"), X]}
    assert it.proposals.counters().tokens == {"forced": 6, "ngram": 4}
    assert it.proposals.counters().calls == 3
    assert it.proposals.counters().seconds >= it.proposals.counters().max_seconds > 0


def test_each_source_alone() -> None:
    it = Iterations(ngram=None)
    it.proposals.open(0, [X, Y, X])
    assert it.run({0: X, 1: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, -1, -1], 1: [-1] * 4}
    assert it.proposals.counters().tokens == {"forced": 2}
    it = Iterations(forced=False)
    it.proposals.open(0, [X, Y])
    assert it.run({0: X, 1: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, -1, -1, -1], 1: [-1] * 4}
    assert it.proposals.counters().tokens == {"ngram": 1}


def test_the_capacity_is_the_iterations() -> None:
    it = Iterations()
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}, num_drafts=1) == {0: [Y, -1, -1, -1]}
    it.proposals.open(1, [X, Y])
    assert it.run({0: Y, 1: X}, num_drafts=0) == {0: [-1] * 4, 1: [-1] * 4}
    assert it.run({0: Z, 1: Y}, num_drafts=2) == {0: [-1] * 4, 1: [X, Y, -1, -1]}


def test_only_slots_of_the_snapshot() -> None:
    it = Iterations()
    for slot in range(3):
        it.proposals.open(slot, [40, 41])
    it.run({0: 40, 2: 40})
    it.proposals.proposed_host[:, 2] = 7
    assert it.run({1: 40}) == {1: [41, 40, 41, 40]}
    assert it.proposals.proposed_host[:, 2].eq(7).all()
    assert it.proposals.proposed_host[:, 3].eq(-1).all()


def test_the_only_token_that_may_follow() -> None:
    """Its mask is filled; an end token is no text."""
    it = Iterations(ngram=None)
    assert it.run({0: 100}, {0: wrap_matcher(CountdownMatcher(1))}) == {0: [END, -1, -1, -1]}
    assert it.run({1: 100}, {1: wrap_matcher(CountdownMatcher(2))}) == {1: [-1] * 4}
    assert it.state.counters("fetch").fills + it.state.counters("commit").fills == 4


def test_nothing_behind_an_end_or_a_failure() -> None:
    it = Iterations()
    for slot in (0, 1):
        it.proposals.open(slot, [X, Y, 40, 40])
    attach: dict[int, Matcher | None] = {
        0: compiled(Guide.regex("x")).matcher(),
        1: compiled(FORCED).matcher(),
    }
    it.run({0: X, 1: 40}, attach)
    assert it.state.status(1)[0] == "refused"
    assert it.run({0: END, 1: X}) == {0: [-1] * 4, 1: [-1] * 4}
    assert it.state.is_terminated(0)
    assert it.state.status(0) == ("", "")


class Failing(CountdownMatcher):
    def forced(self, capacity: int) -> list[int]:
        raise ValueError("planted")


def test_a_matcher_that_fails_ends_its_slot_only() -> None:
    it = Iterations()
    drafts = it.run({0: 100, 1: X}, {0: wrap_matcher(Failing(8)), 1: compiled(FORCED).matcher()})
    assert drafts == {0: [-1] * 4, 1: [Y, Z, -1, -1]}
    status, message = it.state.status(0)
    assert status == "matcher"
    assert "looking for forced tokens: ValueError: planted" in message
    assert it.state.status(1) == ("", "")


def test_proposing_leaves_the_grammar_as_it_was() -> None:
    it = Iterations()
    it.proposals.open(0, [40, X, Y, Z, X])
    matcher = compiled(FORCED).matcher()
    it.run({0: X}, {0: matcher})
    before = it.state.masks_host.clone()
    for _ in range(3):
        it.proposals.run(0)
    it.proposals.run(4)
    assert it.state.masks_host.equal(before)
    assert it.state.extended(0) == 0
    assert allowed(it.state.masks_host[0].numpy()) == [Y]
    assert matcher.validate([Y, Z, 3 + ord("a")]) == 3


def test_a_reused_slot_begins_with_its_own_text() -> None:
    """A text counts from the first push after it was opened: what was pushed before keeps the old one."""
    it = Iterations()
    it.proposals.open(0, [40, 41, 42])
    it.begin([0])
    it.proposals.open(0, [40, 50, 51])
    assert it.finish({0: 40}) == {0: [41, 42, 40, 41]}
    assert it.run({0: 40}) == {0: [50, 51, 40, 50]}
    it.proposals.open(0, [60])
    it.proposals.open(0, [40, 70])
    assert it.run({0: 40}) == {0: [70, 40, 70, 40]}
    it.proposals.open(0, [])
    assert it.run({0: 40}) == {0: [-1] * 4}
    assert it.run({0: 40}) == {0: [40] * 4}


def test_what_could_not_be_sampled_is_no_text() -> None:
    it = Iterations()
    it.proposals.open(0, [40, 41])
    assert it.run({0: -1}) == {0: [-1] * 4}
    assert it.run({0: 40}) == {0: [41, 40, 41, 40]}


def test_as_a_host_task() -> None:
    runtime = CpuRuntime()
    it = Iterations()
    it.proposals.open(0, [40, 41])
    stream = runtime.stream()
    proposed = torch.zeros_like(it.proposals.proposed_host)
    it.state.push([0])
    it.state.verified_host[0, :2] = torch.tensor([0, 40])
    tasks = [it.state.task("fetch"), it.state.task("commit"), it.proposals.task(3)]
    assert tasks[2].name == "weft.propose(3)"
    for task in tasks:
        stream.hostfunc(task)
    stream.copy(proposed, it.proposals.proposed_host)
    stream.synchronize()
    assert proposed[:, 0].tolist() == [41, 40, 41, -1]


def test_what_does_not_fit() -> None:
    it = Iterations()
    for count in (-1, 5):
        with pytest.raises(ValueError, match=r"are not in 0\.\.K"):
            it.proposals.task(count)
    with pytest.raises(InputError, match="at most 64"):
        Iterations(num_drafts=65)


def test_a_switch_leaves_what_is_in_flight() -> None:
    """The host runs ahead: what it says now is for the iterations that it pushes from now on."""
    it, again = Iterations(forced=False), [Y, Z, 40, X, Y, Z, 41]
    it.proposals.open(0, again)
    it.begin([0], {0: compiled(FORCED).matcher()})
    it.proposals.set_guided(False)
    it.begin([0])
    it.proposals.set_guided(True)
    assert it.finish({0: X}) == {0: [Y, Z, -1, -1]}
    assert it.finish({0: Y}) == {0: [Z, 41, X, Y]}
    assert it.run({0: Z}) == {0: [-1, -1, -1, -1]}
