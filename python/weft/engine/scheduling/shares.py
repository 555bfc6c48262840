"""Shares of the slots among clients: who of equal priority comes next, and who gives a slot back to a client that has
none.

Pure decisions; `scheduler.py` carries them out. A client is active while it runs or could run. Each of so many active
clients has that part of the slots as its share, and one slot at least; what nobody else wants it may have besides.
"""

from __future__ import annotations

from collections import Counter, abc

from weft.engine.scheduling.policy import FairTurns, WaitingQueue
from weft.engine.sequence import Sequence

Slots = Counter[int | None]
"""The slots that clients hold."""


def slots_of(running: abc.Sequence[Sequence]) -> Slots:
    """Who holds how many."""
    held: Slots = Counter()
    for each in running:
        held[each.request.client_id] += each.width
    return held


def share(queue: WaitingQueue, held: Slots, num_slots: int) -> int:
    """How many of `num_slots` are an active client's."""
    return max(1, num_slots // len(queue.clients | held.keys()))


def has_newcomer(admitted: abc.Sequence[Sequence], running: abc.Sequence[Sequence]) -> bool:
    """Whether some of `admitted`, who are the last of `running`, are of a client that had no slot before."""
    if not admitted or len(admitted) == len(running):
        return False
    held = slots_of(running[: -len(admitted)])
    return any(held[each.request.client_id] == 0 for each in admitted)


def next_to_run(
    queue: WaitingQueue, turns: FairTurns, running: abc.Sequence[Sequence], num_slots: int
) -> Sequence:
    """The request that is admitted next: of those of the highest priority, the first of a client that holds less than
    its share; the first of all where there is none. Somebody must wait."""
    if len(queue.clients) < 2:
        return queue.first
    held = slots_of(running)
    most, priority = share(queue, held, num_slots), queue.first.request.priority
    heads = [queue.first_of(client) for client in queue.clients if held[client] < most]
    below = [head for head in heads if head.request.priority == priority]
    return min(below, key=turns.place, default=queue.first)


def who_yields(
    newcomer: Sequence,
    queue: WaitingQueue,
    turns: FairTurns,
    running: abc.Sequence[Sequence],
    num_slots: int,
    most: int | None = None,
) -> list[Sequence]:
    """Who gives up a slot, of `num_slots` that are not enough, so that `newcomer`, whose client has none, and others of
    its client can have them: as many as its share needs, `most` at most, each of the client that holds most at that
    time, while that is more than its share. Of a client the least important go, the last first; none that is more
    important than the newcomer, that is searched by beams, or that has not added a token since it was admitted, so that
    everybody comes to an end."""
    held, client = slots_of(running), newcomer.request.client_id
    if held[client] or newcomer.width > 1:
        return []
    own = share(queue, held, num_slots)
    wanted = min(queue.num_of(client), own) - (num_slots - held.total())
    may_go: dict[int | None, list[Sequence]] = {}
    for each in sorted(running, key=turns.place):
        if _may_go(each, newcomer):
            may_go.setdefault(each.request.client_id, []).append(each)
    going: list[Sequence] = []
    while may_go and len(going) < (wanted if most is None else min(wanted, most)):
        largest = max(may_go, key=lambda other: held[other])
        if held[largest] <= own:
            break
        going.append(may_go[largest].pop())
        held[largest] -= 1
        if not may_go[largest]:
            del may_go[largest]
    return going


def _may_go(sequence: Sequence, newcomer: Sequence) -> bool:
    return (
        sequence.search is None
        and not sequence.must_reread
        and sequence.request.priority <= newcomer.request.priority
        and len(sequence.output.token_ids) > sequence.resumed_at
    )
