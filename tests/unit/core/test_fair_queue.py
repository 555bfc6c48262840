"""Clients are served in turn (`weft.core.fair_queue`)."""

from __future__ import annotations

from weft.core.fair_queue import FairQueue


def order(queue: FairQueue[str], ends: bool = True) -> list[str]:
    taken = []
    while len(queue):
        client, job = queue.take()
        taken.append(job)
        if ends:
            queue.done(client)
    return taken


def test_clients_come_in_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(4):
        queue.add("a", f"a{i}")
    queue.add("b", "b0")
    queue.add("c", "c0")
    queue.add("c", "c1")
    assert [queue.num_waiting(client) for client in "abcd"] == [4, 1, 2, 0]
    assert order(queue) == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]


def test_the_client_with_fewer_in_progress_comes_first() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a", "a0")
    assert queue.take() == ("a", "a0")
    for job in ("a1", "a2"):
        queue.add("a", job)
    queue.add("b", "b0")
    assert order(queue, ends=False) == ["b0", "a1", "a2"]


def test_an_item_of_two_clients_comes_once_and_in_the_first_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    for job in ("a0", "a1", "shared"):
        queue.add("a", job)
    queue.add("b", "shared")
    assert "shared" in queue
    assert order(queue) == ["a0", "shared", "a1"]
    assert "shared" not in queue


def test_the_oldest_and_the_smallest_of_a_client_alternate() -> None:
    queue: FairQueue[str] = FairQueue(len)
    for job in ("first....", "second...", "third...", "4", "fifth", "six"):
        queue.add(None, job)
    assert order(queue) == ["first....", "4", "second...", "six", "third...", "fifth"]


def test_nothing_is_kept_of_items_that_are_gone() -> None:
    queue: FairQueue[str] = FairQueue(len)
    for number in range(1000):
        queue.add(None, f"{number:0{number + 10}}")
        if number > 3:
            queue.done(queue.take()[0])
    assert queue.num_waiting(None) == 4
    line = queue._waiting[None]
    assert len(line._by_size) <= 2 * 4 + 16
    assert len(line._by_number) == len(line.items) == 4
    order(queue)
    assert not (queue._waiting or queue._clients or queue._in_progress)
