"""Who waits and whose time is up, against lists that are sorted anew each time."""

from __future__ import annotations

import random

from support.engine.requests import engine_request
from weft.core import SamplingParams
from weft.engine.scheduler.policy import FairTurns, WaitingQueue
from weft.engine.scheduler.waiting import MAX_STALE, Deadlines
from weft.engine.sequence import Sequence


def make(**fields: float) -> Sequence:
    return engine_request([1], SamplingParams(), seed=0, **fields)  # type: ignore[arg-type]


def deadline_of(request: Sequence) -> float:
    return request.deadline or 0


def test_the_queue_is_in_order() -> None:
    """Also where requests of two sources have the same number and priority."""
    rng = random.Random(0)
    turns = FairTurns()
    queue, waiting = WaitingQueue(turns), list[Sequence]()
    for _ in range(500):
        if waiting and rng.random() < 0.4:
            gone = waiting.pop(rng.randrange(len(waiting)))
            assert gone in queue
            queue.remove(gone)
            assert gone not in queue
        else:
            waiting.append(make(priority=rng.choice([0.1, 0.5]), id=rng.randrange(20)))
            assert waiting[-1] not in queue
            queue.add(waiting[-1])
        assert len(queue) == len(waiting)
        assert sorted(map(id, queue)) == sorted(map(id, waiting))
        if waiting:
            assert turns.place(queue.first) == min(map(turns.place, waiting))


def test_deadlines_come_in_their_order() -> None:
    rng = random.Random(0)
    deadlines, live, now = Deadlines(), list[Sequence](), 0.0
    for _ in range(2000):
        now += rng.random()
        late = deadlines.late(now)
        assert late == sorted((r for r in live if deadline_of(r) <= now), key=deadline_of)
        for request in late:
            live.remove(request)
            deadlines.remove(request)
        live.append(make(deadline=now + rng.expovariate(0.05)))
        deadlines.add(live[-1], deadline_of(live[-1]))
        if rng.random() < 0.5:
            deadlines.remove(live.pop(rng.randrange(len(live))))
        deadlines.remove(make(deadline=now))
        assert len(deadlines) == len(live)
        assert deadlines.first == min(map(deadline_of, live), default=None)


def test_nothing_is_kept_of_those_who_ended() -> None:
    """However late they would have been."""
    deadlines, last = Deadlines(), make(deadline=1e9)
    deadlines.add(last, 1e9)
    for _ in range(1000):
        ended = make(deadline=1e9)
        deadlines.add(ended, 1e9)
        deadlines.remove(ended)
        assert len(deadlines.entries) <= MAX_STALE + 3
    deadlines.remove(last)
    assert not deadlines.entries
