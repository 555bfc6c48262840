"""Which request comes first, and how a step's tokens are shared among prompts.

Pure decisions; `scheduler.py` carries them out. Waiting requests stand in the order of priority; of equals, clients
take turns, and the requests of one stand in the order of their arrival. A request that was preempted keeps its place.
"""

from __future__ import annotations

import bisect
from collections import Counter, abc
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from weft.config import Chunking
from weft.engine.sequence import Sequence

Place = tuple[float, int, int]
"""What orders requests: the least is served first."""


@dataclass
class _Line:
    """The requests of one client that wait."""

    last: int
    length: int = 0


class FairTurns:
    """Numbers turns so that clients go one after another (fair queuing): a client's next request has the turn after its
    last one's that waits, but never one that was over when it came. Requests that name no client are one's."""

    def __init__(self) -> None:
        self._now = 0
        self._lines: dict[int | None, _Line] = {}
        self._turns: dict[Sequence, int] = {}  # of requests that have not ended
        self._waiting: set[Sequence] = set()

    def place(self, sequence: Sequence) -> Place:
        """Where a request stands among others."""
        return (-sequence.request.priority, self._turns.get(sequence, 0), sequence.id)

    def take(self, sequence: Sequence) -> None:
        """A request came."""
        line = self._lines.setdefault(sequence.request.client_id, _Line(self._now))
        line.last, line.length = max(line.last, self._now) + 1, line.length + 1
        self._turns[sequence] = line.last
        self._waiting.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """A request is served."""
        self._now = max(self._now, self._turns.get(sequence, 0))
        self._stop_waiting(sequence)

    def forget(self, sequence: Sequence) -> None:
        """A request has ended."""
        self._stop_waiting(sequence)
        self._turns.pop(sequence, None)

    def _stop_waiting(self, sequence: Sequence) -> None:
        if sequence not in self._waiting:
            return
        self._waiting.remove(sequence)
        line = self._lines[sequence.request.client_id]
        line.length -= 1
        if not line.length:
            del self._lines[sequence.request.client_id]


class WaitingQueue:
    """Requests without a slot: `requests`, in the order of `turns`."""

    def __init__(self, turns: FairTurns) -> None:
        self._place = turns.place
        self.requests: list[Sequence] = []
        self._of: dict[int | None, list[Sequence]] = {}  # in the same order

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.requests)

    def __contains__(self, sequence: Sequence) -> bool:
        i = self._index(self.requests, sequence)
        return i < len(self.requests) and self.requests[i] is sequence

    @property
    def first(self) -> Sequence:
        """The most important; there must be one."""
        return self.requests[0]

    @property
    def clients(self) -> KeysView[int | None]:
        """Whose requests they are."""
        return self._of.keys()

    def first_of(self, client: int | None) -> Sequence:
        """The most important of one of the clients."""
        return self._of[client][0]

    def num_of(self, client: int | None) -> int:
        """How many are a client's."""
        return len(self._of.get(client, ()))

    def add(self, sequence: Sequence) -> None:
        """Queue a request at its place."""
        bisect.insort(self.requests, sequence, key=self._place)
        bisect.insort(self._of.setdefault(sequence.request.client_id, []), sequence, key=self._place)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out, which is there."""
        assert sequence in self
        client = sequence.request.client_id
        for sequences in (self.requests, self._of[client]):
            del sequences[self._index(sequences, sequence)]
        if not self._of[client]:
            del self._of[client]

    def _index(self, sequences: abc.Sequence[Sequence], sequence: Sequence) -> int:
        """Where a request stands, if it is there."""
        place = self._place(sequence)
        i = bisect.bisect_left(sequences, place, key=self._place)
        # Requests of several sources may have the same number.
        while i + 1 < len(sequences) and sequences[i] is not sequence:
            if self._place(sequences[i + 1]) != place:
                break
            i += 1
        return i


def share_tokens(
    remaining: abc.Sequence[int], budget: int, chunking: Chunking, unit: int, *, whole: int | None = None
) -> list[int]:
    """How many of its `remaining` tokens each prompt reads in a step that may read `budget`.

    `"first_come"`: one after another; `"equal_progress"`: all get the same, in steps of `unit`. A prompt of at most
    `whole` tokens is read at once, one after another, or not at all (None: in parts like the others).
    """
    shares = [0] * len(remaining)
    if whole is not None:
        for i, count in enumerate(remaining):
            if count > budget and count <= whole:
                break
            shares[i] = min(count, budget)
            budget -= shares[i]
    elif chunking == "first_come":
        for i, count in enumerate(remaining):
            shares[i] = min(count, budget)
            budget -= shares[i]
    else:
        waiting = [i for i, count in enumerate(remaining) if count]
        while waiting and budget:
            for i in waiting:
                more = min(unit, remaining[i] - shares[i], budget)
                shares[i], budget = shares[i] + more, budget - more
            waiting = [i for i in waiting if shares[i] < remaining[i]]
    return shares


# MERGED-DOC """Shares of the slots among clients: who of equal priority comes next, and who gives a slot back to a client that has
# MERGED-DOC none.
# MERGED-DOC
# MERGED-DOC Pure decisions; `scheduler.py` carries them out. A client is active while it runs or could run. Each of so many active
# MERGED-DOC clients has that part of the slots as its share, and one slot at least; what nobody else wants it may have besides.
# MERGED-DOC """


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
        and not sequence.is_spliced
        and sequence.request.priority <= newcomer.request.priority
        and len(sequence.output.token_ids) > sequence.resumed_at
    )
