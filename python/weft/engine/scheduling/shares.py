"""Shares of the slots among clients: who of equal priority comes next, and who gives a slot back to a client that has
none.

Pure decisions; `scheduler.py` carries them out. A client is active while it runs or could run. Each of so many active
clients has that part of the slots as its share, and one slot at least; what nobody else wants it may have besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.engine.scheduling.policy import FairTurns, WaitingQueue
from weft.engine.scheduling.running import Running
from weft.engine.sequence import Request

Slots = Counter[int | None]
"""The slots that clients hold."""


def slots_of(running: Sequence[Running]) -> Slots:
    """Who holds how many."""
    held: Slots = Counter()
    for each in running:
        held[each.request.queueing.client] += each.request.width
    return held


def share(queue: WaitingQueue, held: Slots, num_slots: int) -> int:
    """How many of `num_slots` are an active client's."""
    return max(1, num_slots // len(queue.clients | held.keys()))


def has_newcomer(admitted: Sequence[Running], running: Sequence[Running]) -> bool:
    """Whether some of `admitted`, who are the last of `running`, are of a client that had no slot before."""
    if not admitted or len(admitted) == len(running):
        return False
    held = slots_of(running[: -len(admitted)])
    return any(held[each.request.queueing.client] == 0 for each in admitted)


def next_to_run(queue: WaitingQueue, turns: FairTurns, running: Sequence[Running], num_slots: int) -> Request:
    """The request that is admitted next: of those of the highest priority, the first of a client that holds less than
    its share; the first of all where there is none. Somebody must wait."""
    if len(queue.clients) < 2:
        return queue.first
    held = slots_of(running)
    most, priority = share(queue, held, num_slots), queue.first.queueing.priority
    heads = [queue.first_of(client) for client in queue.clients if held[client] < most]
    below = [head for head in heads if head.queueing.priority == priority]
    return min(below, key=turns.place, default=queue.first)


def who_yields(
    newcomer: Request,
    queue: WaitingQueue,
    turns: FairTurns,
    running: Sequence[Running],
    num_slots: int,
    most: int | None = None,
) -> list[Running]:
    """Who gives up a slot, of `num_slots` that are not enough, so that `newcomer`, whose client has none, and others of
    its client can have them: as many as its share needs, `most` at most, each of the client that holds most at that
    time, while that is more than its share. Of a client the least important go, the last first; none that is more
    important than the newcomer, that is searched by beams, or that has not added a token since it was admitted, so that
    everybody comes to an end."""
    held, client = slots_of(running), newcomer.queueing.client
    if held[client] or newcomer.width > 1:
        return []
    own = share(queue, held, num_slots)
    wanted = min(queue.num_of(client), own) - (num_slots - held.total())
    may_go: dict[int | None, list[Running]] = {}
    for each in sorted(running, key=lambda one: turns.place(one.request)):
        if _may_go(each, newcomer):
            may_go.setdefault(each.request.queueing.client, []).append(each)
    going: list[Running] = []
    while may_go and len(going) < (wanted if most is None else min(wanted, most)):
        largest = max(may_go, key=lambda other: held[other])
        if held[largest] <= own:
            break
        going.append(may_go[largest].pop())
        held[largest] -= 1
        if not may_go[largest]:
            del may_go[largest]
    return going


def _may_go(running: Running, newcomer: Request) -> bool:
    request = running.request
    return (
        running.search is None
        and not running.is_spliced
        and request.queueing.priority <= newcomer.queueing.priority
        and len(request.output.token_ids) > running.resumed_at
    )
