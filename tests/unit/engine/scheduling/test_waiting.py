"""Requests that wait for a guide or a program: what is left of those that end leaves with the next step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from support.engine.requests import engine_request
from weft.engine.scheduling.policy import FairTurns
from weft.engine.scheduling.programs import Programs
from weft.engine.scheduling.waiting import Waiting
from weft.grammar.base import CompiledGuide, Matcher, Opening
from weft.grammar.starts import OpensAhead, StartedGuide, Starts


class Program:
    """A compiled guide whose matchers take long to begin."""

    guide, vocab_size, memory_bytes, sequence_bytes, notes, backend, opens_ahead = "", 8, 0, 1, (), None, True

    def open(self, opening: Opening) -> Matcher:
        return cast(Matcher, object())


class Slow(Starts):
    """Starts that are under way, and can't be stopped, until they are ended by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[tuple[Callable[[], Matcher], Future[Matcher]]] = []

    def begin(self, start: Callable[[], Matcher]) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        future.set_running_or_notify_cancel()
        self.under_way.append((start, future))
        return future


def waiting_with(starts: Starts) -> Waiting:
    turns = FairTurns()
    return Waiting(60.0, turns, Programs(starts, 2, 100, turns))


def test_a_start_whose_request_has_ended_is_taken_when_it_is_over() -> None:
    """Also where nobody waits for a program, so that nothing looks as if it had news for ever."""
    starts = Slow()
    waiting = waiting_with(starts)
    compiling: Future[CompiledGuide] = Future()
    request = engine_request([1], guide=compiling)
    waiting.add(request)
    compiling.set_result(cast(Any, StartedGuide(cast(OpensAhead, Program()), Opening([1]))))
    assert waiting.collect() == [] and len(starts.under_way) == 1
    waiting.forget(request)
    assert not waiting.unready and waiting.programs.orphans
    start, future = starts.under_way.pop()
    future.set_result(start())
    assert waiting.has_compiled
    assert waiting.collect() == []
    assert not waiting.has_compiled and not waiting.programs.orphans


def test_what_was_compiled_for_nobody_is_let_go() -> None:
    waiting = waiting_with(Slow())
    compiling: Future[CompiledGuide] = Future()
    request = engine_request([1], guide=compiling)
    waiting.add(request)
    waiting.forget(request)
    compiling.set_result(cast(Any, object()))
    assert waiting.compiled and waiting.collect() == [] and not waiting.compiled
