"""When programs start: near a slot, within what they may hold together, siblings as copies of one; nobody is stuck."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from support.engine.requests import engine_request
from weft import CapacityError, SamplingParams
from weft.core.beam_params import BeamParams
from weft.engine.scheduler.policy import FairTurns
from weft.engine.scheduler.starts import MatcherStarts, StartThreads
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import Sequence
from weft.grammar.base import CompiledGuide, Matcher, Opening
from weft.grammar.starts import OpensAhead, StartedGuide


class Program:
    """Counts what it holds: matchers that are alive."""

    guide: Any = "guide"
    vocab_size = 8
    memory_bytes = 0
    notes = ()
    backend = None
    opens_ahead = True
    memory_settings = "its limits"

    def __init__(self, sequence_bytes: int = 10, error: Exception | None = None) -> None:
        self.sequence_bytes = sequence_bytes
        self.error = error
        self.alive = 0
        self.num_opened = 0

    def matcher(self, opening: Opening = Opening()) -> Matcher:  # noqa: B008
        raise AssertionError

    def open(self, opening: Opening) -> Matcher:
        if self.error is not None:
            raise self.error
        self.num_opened += 1
        return cast(Matcher, Held(self))


class Held:
    def __init__(self, program: Program) -> None:
        self._program = program
        program.alive += 1

    def __del__(self) -> None:
        self._program.alive -= 1

    def fork(self) -> Held:
        return Held(self._program)


class ByHand(StartThreads):
    """Begins when it is told to, like a thread that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[tuple[Callable[[], Matcher], Future[Matcher]]] = []

    def begin(self, start: Callable[[], Matcher]) -> Future[Matcher]:
        future: Future[Matcher] = Future()
        self.queue.append((start, future))
        return future

    def run(self) -> None:
        while self.queue:
            start, future = self.queue.pop(0)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(start())
            except Exception as error:  # its frames would hold what this function does
                future.set_exception(type(error)(str(error)))
            del start, future


_numbers = iter(range(1, 10**9))


def siblings(program: Program, count: int = 1, priority: float = 0.5) -> list[Sequence]:
    guide = StartedGuide(cast(OpensAhead, program), Opening([1]))
    made = []
    for _ in range(count):
        request = engine_request(
            [1], SamplingParams(), 0, compiled=guide, priority=priority, id=next(_numbers)
        )
        made.append(request)
    return made


class Rig:
    """Programs, and requests that got slots; checks the bounds after each step."""

    def __init__(self, ahead: int, max_bytes: int, slots: int = 2) -> None:
        self.starts = ByHand()
        self.programs = MatcherStarts(self.starts, ahead, max_bytes, FairTurns())
        self.ahead, self.max_bytes, self.slots = ahead, max_bytes, slots
        self.ready: list[Sequence] = []
        self.active: list[Sequence] = []
        self.failed: list[tuple[Sequence, BaseException]] = []
        self.ended = 0
        self.kinds: list[Program] = []

    def add(self, program: Program, count: int = 1, priority: float = 0.5) -> list[Sequence]:
        self.kinds.append(program)
        made = siblings(program, count, priority)
        for request in made:
            self.programs.add(request)
        return made

    def turn(self, run: bool = True) -> None:
        ready, failed = self.programs.collect()
        self.ready += ready
        for request, error in failed:
            self.failed.append((request, error))
            self.end(request)
        while self.ready and len(self.active) < self.slots:
            request = self.ready.pop(0)
            self.programs.admit(request)
            self.active.append(request)
        if run:
            self.starts.run()
        self.check()

    def end(self, request: Sequence) -> None:
        self.programs.remove(request)
        for held in (self.ready, self.active):
            if request in held:
                held.remove(request)
        request.close()
        self.ended += 1

    def check(self) -> None:
        assert 0 <= self.programs.held_bytes <= self.max_bytes
        alive = sum(program.alive * program.sequence_bytes for program in set(self.kinds))
        assert alive <= self.programs.held_bytes
        assert len(self.ready) + len(self.programs._starting) <= self.ahead

    def is_empty(self) -> bool:
        programs = self.programs
        left = (programs._waiting, programs._siblings, programs._starting, programs._ahead, programs._held)
        return not any(map(len, left)) and programs.held_bytes == 0 and not programs.orphans


def test_no_more_begin_than_are_near_a_slot() -> None:
    rig, program = Rig(ahead=3, max_bytes=10**6), Program()
    requests = [rig.add(program)[0] for _ in range(40)]
    for _ in range(4):
        rig.turn()
    assert rig.active == requests[:2] and rig.ready == requests[2:5]
    assert program.num_opened == program.alive == 5
    rig.end(requests[0])
    for _ in range(3):
        rig.turn()
    assert program.num_opened == 6 and rig.active == requests[1:3]
    assert not rig.programs.has_news


def test_the_most_important_begins_first() -> None:
    rig, program = Rig(ahead=1, max_bytes=10**6, slots=0), Program()
    rig.add(program)
    (important,) = rig.add(program, priority=0.9)
    rig.turn()
    rig.turn()
    assert rig.ready == [important]


def test_siblings_begin_as_slots_come_near_and_are_copies() -> None:
    """Never more than those that run, those ahead, and the copy that is kept; the last one takes that."""
    rig, program = Rig(ahead=2, max_bytes=10**6), Program()
    requests = rig.add(program, 30)
    most = 0
    while rig.ended < 30:
        rig.turn()
        most = max(most, program.alive)
        if rig.active:
            rig.end(rig.active[0])
    assert program.num_opened == 1
    assert most <= 5 and program.alive == 0 and rig.is_empty()
    assert requests[0].guide is not None and requests[0].guide.matcher is None


def test_memory_in_sum() -> None:
    """Whoever does not fit waits; nobody who is smaller goes before him, or he would wait for ever."""
    rig = Rig(ahead=8, max_bytes=100, slots=8)
    small, large = Program(30), Program(80)
    first = [rig.add(small)[0] for _ in range(2)]
    (big,) = rig.add(large)
    later = [rig.add(small)[0] for _ in range(3)]
    for _ in range(3):
        rig.turn()
    assert rig.active == first
    rig.end(first[0])
    rig.turn()
    assert rig.active == [first[1]]
    rig.end(first[1])
    rig.turn()
    rig.turn()
    assert rig.active == [big]
    rig.end(big)
    for _ in range(3):
        rig.turn()
    assert rig.active == later
    for request in later:
        rig.end(request)
    assert rig.is_empty()


@pytest.mark.parametrize(
    ("sequence_bytes", "count", "fails"), [(100, 1, False), (101, 1, True), (50, 2, False), (51, 2, True)]
)
def test_what_can_never_fit_is_told(sequence_bytes: int, count: int, fails: bool) -> None:
    rig = Rig(ahead=8, max_bytes=100)
    requests = rig.add(Program(sequence_bytes), count)
    for _ in range(6):
        rig.turn()
    if not fails:
        assert not rig.failed and rig.active
        return
    assert rig.failed[0][0] is requests[0]
    assert isinstance(rig.failed[0][1], CapacityError)
    assert "max_program_bytes is 100" in str(rig.failed[0][1])
    for request in requests[1:]:
        rig.end(request)
    assert rig.is_empty()


def test_beams_count_each() -> None:
    rig, program = Rig(ahead=8, max_bytes=100, slots=8), Program(10)
    rig.kinds.append(program)
    guide = StartedGuide(cast(OpensAhead, program), Opening([1]))
    request = engine_request([1], compiled=guide, beam=BeamParams(4, 4), id=next(_numbers))
    assert request.guide is not None
    rig.programs.add(request)
    rig.turn()
    assert rig.programs.held_bytes == 50
    rig.turn()
    begun = request.guide.take_matcher()
    assert isinstance(begun, Held) and request.guide.matcher is None
    del begun
    rig.end(request)
    assert rig.is_empty()


def test_a_start_that_fails_is_its_requests() -> None:
    rig = Rig(ahead=8, max_bytes=100)
    bad, good = rig.add(Program(error=ValueError("planted")), 3), rig.add(Program())
    for _ in range(4):
        rig.turn()
    assert [str(error) for _, error in rig.failed] == ["planted"] * 3
    assert [request for request, _ in rig.failed] == bad
    assert rig.active == good
    rig.end(good[0])
    assert rig.is_empty()


def test_a_start_under_way_holds_its_bytes_until_it_is_over() -> None:
    """Also where its request was cancelled; one that has not begun holds nothing."""
    rig, program = Rig(ahead=2, max_bytes=100), Program(60)
    first, second = rig.add(program)[0], rig.add(program)[0]
    rig.turn(run=False)
    (start, future), *_ = rig.starts.queue
    assert future.set_running_or_notify_cancel()
    rig.end(first)
    rig.turn(run=False)
    assert len(rig.starts.queue) == 1 and rig.programs.held_bytes == 60
    future.set_result(start())
    rig.starts.queue.clear()
    del start, future
    assert rig.programs.has_news
    rig.turn(run=False)
    assert program.alive == 0
    rig.end(second)
    rig.starts.run()
    assert program.num_opened == 1 and rig.is_empty()


@pytest.mark.parametrize("seed", range(30))
def test_nobody_is_stuck(seed: int) -> None:
    """Requests of any size, alone and with siblings, that end and are cancelled at any moment: all begin or end, within
    the bounds, and nothing is left."""
    rng = random.Random(seed)
    rig = Rig(ahead=rng.choice([1, 2, 5]), max_bytes=rng.choice([40, 100]), slots=rng.choice([1, 3]))
    sizes = rng.choice([[20], [5, 20], [1, 7, 13, 20]])
    requests: list[Sequence] = []
    for _ in range(rng.randint(3, 25)):
        failing = ValueError("planted") if rng.random() < 0.1 else None
        program = Program(rng.choice(sizes), failing)
        requests += rig.add(program, rng.choice([1, 1, 2, 9]), rng.choice([0.5, 0.5, 0.9]))
    idle = 0
    for _ in range(3000):
        before = (rig.ended, len(rig.active), len(rig.ready), len(rig.programs))
        rig.turn(run=rng.random() < 0.7)
        alive = [request for request in requests if request.guide and request.guide.compiled is not None]
        if rig.active and rng.random() < 0.5:
            rig.end(rng.choice(rig.active))
        elif alive and rng.random() < 0.05:
            rig.end(rng.choice(alive))
        elif not alive:
            break
        idle = 0 if before != (rig.ended, len(rig.active), len(rig.ready), len(rig.programs)) else idle + 1
        assert idle < 200, "nothing goes on"
    rig.starts.run()
    rig.turn()
    assert not [request for request in requests if request.guide and request.guide.compiled is not None]
    assert rig.is_empty()
    assert all(program.alive == 0 for program in rig.kinds)


def waiting_with(starts: StartThreads) -> Waiting:
    turns = FairTurns()
    return Waiting(60.0, turns, MatcherStarts(starts, 2, 100, turns))


def test_a_start_whose_request_has_ended_is_taken_when_it_is_over() -> None:
    """Also where nobody waits for a program, so that nothing looks as if it had news for ever."""
    starts = ByHand()
    waiting = waiting_with(starts)
    compiling: Future[CompiledGuide] = Future()
    request = engine_request([1], guide=compiling)
    waiting.add(request)
    compiling.set_result(cast(Any, StartedGuide(cast(OpensAhead, Program()), Opening([1]))))
    assert waiting.collect() == [] and len(starts.queue) == 1
    start, future = starts.queue.pop()
    future.set_running_or_notify_cancel()  # so that it can't be stopped
    waiting.remove(request)
    assert not waiting.unready and waiting.starts.orphans
    future.set_result(start())
    assert waiting.can_collect
    assert waiting.collect() == []
    assert not waiting.can_collect and not waiting.starts.orphans


def test_what_was_compiled_for_nobody_is_let_go() -> None:
    waiting = waiting_with(ByHand())
    compiling: Future[CompiledGuide] = Future()
    request = engine_request([1], guide=compiling)
    waiting.add(request)
    waiting.remove(request)
    compiling.set_result(cast(Any, object()))
    assert waiting.compiled and waiting.collect() == [] and not waiting.compiled
