"""The order of those who wait: priority, then clients in turn, then arrival; nothing is kept of who is gone."""

from __future__ import annotations

import random

import pytest

from support.engine.requests import engine_request
from weft import SamplingParams
from weft.engine.scheduler.policy import FairTurns, WaitingQueue
from weft.engine.sequence import Sequence

_numbers = iter(range(1, 10**9))


class Line:
    """A queue, and who is served from it."""

    def __init__(self) -> None:
        self.turns = FairTurns()
        self.queue = WaitingQueue(self.turns)

    def come(self, client: int | None, count: int = 1, priority: float = 0.5) -> list[Sequence]:
        made = [
            engine_request([1], SamplingParams(), 0, client=client, priority=priority, id=next(_numbers))
            for _ in range(count)
        ]
        for request in made:
            self.turns.take(request)
            self.queue.add(request)
        return made

    def serve(self, count: int = 1) -> list[Sequence]:
        served = []
        for _ in range(count):
            request = self.queue.first
            self.queue.remove(request)
            self.turns.admit(request)
            served.append(request)
        return served

    def leave(self, request: Sequence) -> None:
        self.queue.remove(request)
        self.turns.remove(request)


def clients(requests: list[Sequence]) -> list[int | None]:
    return [request.request.client_id for request in requests]


@pytest.mark.parametrize("client", [None, 7])
def test_one_client_is_served_in_the_order_of_arrival(client: int | None) -> None:
    rng, line = random.Random(1), Line()
    came: list[Sequence] = []
    served: list[Sequence] = []
    for _ in range(300):
        came += line.come(client, rng.randint(0, 3))
        if len(line.queue):
            served += line.serve(rng.randint(0, min(3, len(line.queue))))
    served += line.serve(len(line.queue))
    assert served == came
    assert not line.turns._clients


def test_who_comes_late_does_not_wait_for_all_of_another() -> None:
    """A thousand of one client delay another's by one, and those of a third alternate."""
    line = Line()
    line.come(1, 1000)
    line.serve(10)
    line.come(2)
    assert clients(line.serve(2)) == [1, 2]
    line.come(3, 5)
    line.come(2, 5)
    assert sorted(clients(line.serve(15)), key=str) == [1] * 5 + [2] * 5 + [3] * 5


def test_who_was_away_has_nothing_saved_up() -> None:
    """Nor does who left anything to pay: each begins where the others are."""
    line = Line()
    line.come(1, 50)
    line.serve(40)
    for request in line.come(2, 100):
        line.leave(request)
    line.come(2, 20)
    served = clients(line.serve(20))
    assert abs(served.count(1) - served.count(2)) <= 1


def test_priority_goes_first() -> None:
    line = Line()
    line.come(1, 3)
    late = line.come(1, 2, priority=0.9) + line.come(2, 1, priority=0.8)
    assert line.serve(3) == late


def test_nothing_is_kept_of_clients_that_are_gone() -> None:
    line = Line()
    for client in range(1000):
        line.come(client)
        line.serve()
    assert not line.turns._clients
    (request,) = line.come(5)
    line.leave(request)
    line.turns.remove(request)  # again: an end after an admission
    assert not line.turns._clients


def test_a_preempted_request_keeps_its_place() -> None:
    line = Line()
    line.come(1, 5)
    first, second = line.serve(2)
    line.queue.add(second)
    line.come(2, 5)
    line.queue.add(first)
    assert line.queue.first is first
    assert line.serve(2) == [first, second]
