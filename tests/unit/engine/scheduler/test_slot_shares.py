"""Shares of the slots: who comes next, and who yields, by hand and at random."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from support.engine.requests import engine_request
from weft import SamplingParams
from weft.engine.kv.cache import KvSequence
from weft.engine.scheduler.policy import FairTurns, WaitingQueue, choose_yielding, next_to_run
from weft.engine.sequence import Sequence, Stage

ADA, BOB, EVE = 1, 2, 3

_numbers = iter(range(1, 10**9))


class Floor:
    """`slots` slots, who has one, and who waits."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.turns = FairTurns()
        self.queue = WaitingQueue(self.turns)
        self.running: list[Sequence] = []

    def come(self, client: int, count: int = 1, priority: float = 0.5) -> list[Sequence]:
        made = [
            engine_request([1], SamplingParams(), 0, client=client, priority=priority, id=next(_numbers))
            for _ in range(count)
        ]
        for request in made:
            self.turns.take(request)
            self.queue.add(request)
        return made

    def admit(self) -> list[Sequence]:
        admitted = []
        while len(self.queue) and len(self.running) < self.slots:
            request = next_to_run(self.queue, self.turns, self.running, self.slots)
            self.queue.remove(request)
            self.turns.admit(request)
            request.admit((0,), KvSequence([], 0, [], 1, None, []), 100)
            self.running.append(request)
            admitted.append(request)
        return admitted

    def decode(self) -> None:
        for each in self.running:
            each.output.token_ids.append(1)

    def end(self, client: int, count: int = 1) -> None:
        for each in [one for one in self.running if one.request.client_id == client][:count]:
            self.running.remove(each)
            self.turns.remove(each)

    def yielding(self) -> list[Sequence]:
        """Those that yield to the first that waits; they wait then."""
        if not len(self.queue) or len(self.running) < self.slots:
            return []
        newcomer = next_to_run(self.queue, self.turns, self.running, self.slots)
        gone = choose_yielding(newcomer, self.queue, self.turns, self.running, self.slots)
        for each in gone:
            self.running.remove(each)
            each.move(Stage.QUEUED)
            self.queue.add(each)
        return gone

    @property
    def held(self) -> Counter[int | None]:
        return Counter(each.request.client_id for each in self.running)


def flooded(slots: int = 8, waiting: int = 50) -> tuple[Floor, list[Sequence]]:
    """All slots are Ada's, and more of her requests wait."""
    floor = Floor(slots)
    floor.come(ADA, slots + waiting)
    first = floor.admit()
    floor.decode()
    return floor, first


def test_a_newcomer_gets_a_slot_of_who_has_all() -> None:
    floor, first = flooded()
    (bobs,) = floor.come(BOB)
    assert floor.yielding() == first[-1:]
    assert floor.admit() == [bobs]
    assert not floor.yielding(), "the one that yielded takes nobody's slot"


def test_who_yielded_goes_on_first_when_there_is_a_slot() -> None:
    floor, first = flooded()
    floor.come(BOB)
    floor.yielding()
    floor.admit()
    floor.end(BOB)
    assert floor.admit() == first[-1:]


def test_a_newcomer_with_many_gets_its_share_and_no_more() -> None:
    floor, first = flooded()
    floor.come(BOB, 20)
    assert floor.yielding() == first[:3:-1]
    floor.admit()
    assert floor.held == {ADA: 4, BOB: 4}
    floor.decode()
    assert not floor.yielding()


def test_who_has_most_yields() -> None:
    floor, _ = flooded(slots=9)
    floor.come(BOB, 3)
    floor.yielding()
    floor.admit()
    floor.decode()
    assert floor.held == {ADA: 6, BOB: 3}
    floor.come(EVE, 9)
    assert {request.request.client_id for request in floor.yielding()} == {ADA}
    floor.admit()
    assert floor.held == {ADA: 3, BOB: 3, EVE: 3}


def test_one_slot_each_is_nobodys_to_take() -> None:
    floor = Floor(3)
    for client in (ADA, BOB, EVE):
        floor.come(client, 2)
    floor.admit()
    floor.decode()
    floor.come(4)
    assert floor.held == {ADA: 1, BOB: 1, EVE: 1} and not floor.yielding()


def test_freed_slots_go_to_who_has_less_than_its_share() -> None:
    floor, _ = flooded()
    floor.come(BOB, 10)
    floor.yielding()
    floor.admit()
    floor.end(ADA, 2)
    assert {request.request.client_id for request in floor.admit()} == {ADA}
    floor.end(BOB, 2)
    assert {request.request.client_id for request in floor.admit()} == {BOB}


@pytest.mark.parametrize(("bobs", "yields"), [(0.9, True), (0.5, True), (0.4, False)])
def test_priorities_stand_above_shares(bobs: float, yields: bool) -> None:
    floor, _ = flooded(waiting=0)
    floor.come(BOB, priority=bobs)
    assert bool(floor.yielding()) == yields


def test_the_least_important_of_a_client_yield() -> None:
    floor = Floor(4)
    floor.come(ADA, 2, priority=0.5)
    least = floor.come(ADA, 1, priority=0.1)
    floor.come(ADA, 1, priority=0.5)
    floor.admit()
    floor.decode()
    floor.come(BOB, 1)
    assert floor.yielding() == least


def test_more_important_requests_of_a_client_that_has_all_come_first() -> None:
    floor, _ = flooded(waiting=0)
    floor.come(BOB)
    urgent = floor.come(ADA, priority=0.8)
    assert not floor.yielding()
    floor.end(ADA)
    assert floor.admit() == urgent


def test_who_added_no_token_since_it_came_does_not_yield() -> None:
    """So everybody comes to an end, however many newcomers there are."""
    floor, first = flooded(slots=2, waiting=0)
    for _ in range(5):
        floor.come(BOB)
        assert floor.yielding() == [first[1]]
        floor.admit()
        floor.end(BOB)
        assert floor.admit() == [first[1]]
        floor.come(BOB)
        assert floor.yielding() == [first[0]]
        floor.admit()
        floor.end(BOB)
        floor.admit()
        floor.decode()


@pytest.mark.parametrize("seed", range(5))
def test_at_random_everybody_active_runs_and_preemptions_are_bounded(seed: int) -> None:
    """While there are no more clients than slots, whoever waits has a slot after a step, or nobody may yield; and no
    more yield than newcomers get slots."""
    rng = random.Random(seed)
    floor, num_yielded, num_admitted = Floor(rng.randint(4, 9)), 0, 0
    for _ in range(400):
        for client in (ADA, BOB, EVE):
            if rng.random() < 0.3:
                floor.come(client, rng.randint(1, 6))
        gone = floor.yielding()
        num_yielded += len(gone)
        admitted = floor.admit()
        num_admitted += len(admitted)
        assert len(admitted) >= len(gone) and not {*admitted} & {*gone}
        assert len(floor.running) == min(floor.slots, len(floor.running) + len(floor.queue))
        floor.decode()
        for _ in range(5):  # each step serves one newcomer
            num_yielded += len(floor.yielding())
            floor.admit()
            floor.decode()
        assert all(floor.held[client] for client in floor.queue.clients), floor.held
        for client in (ADA, BOB, EVE):
            if rng.random() < 0.5:
                floor.end(client, rng.randint(0, 3))
    assert 0 < num_yielded <= num_admitted
