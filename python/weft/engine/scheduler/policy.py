"""The scheduler's policies: which sequence is admitted next, which ones yield their slots, and how a step's tokens are
shared.

These functions only decide; `scheduler.py` acts. Waiting sequences are ordered by priority. At equal priority, clients
take turns, and one client's sequences are served in order of arrival. A preempted sequence keeps its place.

A client is active if it has a running sequence, or one that is ready to run. Active clients share the slots equally,
with at least one slot each. A client may hold more than its share while no other client needs the slots.
"""

from __future__ import annotations

import bisect
from collections import Counter, abc
from collections.abc import Iterator, KeysView
from dataclasses import dataclass

from weft.config import Chunking
from weft.engine.sequence import Sequence

Place = tuple[float, int, int]
"""A sequence's place in the queue: (negative priority, turn, id). The smallest is served first."""

Slots = Counter[int | None]
"""The number of slots that each client holds."""


@dataclass
class _Client:
    """A client with waiting sequences. `last_turn` is the turn of the one that arrived last."""

    last_turn: int
    num_waiting: int = 0


class FairTurns:
    """Fair queuing: gives each sequence a turn number.

    A client's new sequence gets the turn after the client's latest waiting sequence, and at least the turn after the
    one that is served now. Requests without a client id count as one client.
    """

    def __init__(self) -> None:
        self._now = 0
        self._clients: dict[int | None, _Client] = {}
        self._turns: dict[Sequence, int] = {}  # by sequence, until it ends
        self._waiting: set[Sequence] = set()

    def place(self, sequence: Sequence) -> Place:
        """A sequence's sort key in the queue; the smallest is served first."""
        return (-sequence.request.priority, self._turns.get(sequence, 0), sequence.id)

    def take(self, sequence: Sequence) -> None:
        """Assign a turn to a new sequence."""
        client = self._clients.setdefault(sequence.request.client_id, _Client(self._now))
        client.last_turn = max(client.last_turn, self._now) + 1
        client.num_waiting += 1
        self._turns[sequence] = client.last_turn
        self._waiting.add(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Note that a sequence was admitted. Its turn becomes the current one."""
        self._now = max(self._now, self._turns.get(sequence, 0))
        self._stop_waiting(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        self._stop_waiting(sequence)
        self._turns.pop(sequence, None)

    def _stop_waiting(self, sequence: Sequence) -> None:
        if sequence not in self._waiting:
            return
        self._waiting.remove(sequence)
        client = self._clients[sequence.request.client_id]
        client.num_waiting -= 1
        if not client.num_waiting:
            del self._clients[sequence.request.client_id]


class WaitingQueue:
    """The sequences that wait for a slot: `sequences`, ordered by `turns`."""

    def __init__(self, turns: FairTurns) -> None:
        self._place = turns.place
        self.sequences: list[Sequence] = []
        self._by_client: dict[int | None, list[Sequence]] = {}  # each list in the same order

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        index = self._index(self.sequences, sequence)
        return index < len(self.sequences) and self.sequences[index] is sequence

    @property
    def first(self) -> Sequence:
        """The first sequence; the queue must not be empty."""
        return self.sequences[0]

    @property
    def clients(self) -> KeysView[int | None]:
        """The clients with a sequence in the queue."""
        return self._by_client.keys()

    def first_of(self, client: int | None) -> Sequence:
        """The first sequence of a client, which must be one of `clients`."""
        return self._by_client[client][0]

    def num_of(self, client: int | None) -> int:
        """The number of a client's sequences in the queue."""
        return len(self._by_client.get(client, ()))

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence according to its place."""
        bisect.insort(self.sequences, sequence, key=self._place)
        bisect.insort(self._by_client.setdefault(sequence.request.client_id, []), sequence, key=self._place)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, which must be in the queue."""
        assert sequence in self
        client = sequence.request.client_id
        for sequences in (self.sequences, self._by_client[client]):
            del sequences[self._index(sequences, sequence)]
        if not self._by_client[client]:
            del self._by_client[client]

    def _index(self, sequences: abc.Sequence[Sequence], sequence: Sequence) -> int:
        """The index of a sequence in the list. If it is not in the list, the index is that of another sequence, or the
        list's length."""
        place = self._place(sequence)
        index = bisect.bisect_left(sequences, place, key=self._place)
        # Fronts may number sequences themselves, so several may have the same id and the same place.
        while index + 1 < len(sequences) and sequences[index] is not sequence:
            if self._place(sequences[index + 1]) != place:
                break
            index += 1
        return index


# -- shares of the slots


def slots_of(running: abc.Sequence[Sequence]) -> Slots:
    """Count the slots that each client holds."""
    held: Slots = Counter()
    for sequence in running:
        held[sequence.request.client_id] += sequence.width
    return held


def share(queue: WaitingQueue, held: Slots, num_slots: int) -> int:
    """The share of `num_slots` slots that each active client has."""
    return max(1, num_slots // len(queue.clients | held.keys()))


def next_to_run(
    queue: WaitingQueue, turns: FairTurns, running: abc.Sequence[Sequence], num_slots: int
) -> Sequence:
    """The sequence to admit next: of those with the highest priority, the first whose client holds less than its share.
    If there is none, it is the first of the queue. The queue must not be empty."""
    if len(queue.clients) < 2:
        return queue.first
    held = slots_of(running)
    limit, priority = share(queue, held, num_slots), queue.first.request.priority
    heads = [queue.first_of(client) for client in queue.clients if held[client] < limit]
    eligible = [head for head in heads if head.request.priority == priority]
    return min(eligible, key=turns.place, default=queue.first)


def choose_yielding(
    newcomer: Sequence,
    queue: WaitingQueue,
    turns: FairTurns,
    running: abc.Sequence[Sequence],
    num_slots: int,
    max_yielding: int | None = None,
) -> list[Sequence]:
    """Choose running sequences that yield their slots to the client of `newcomer`, if it holds none of `num_slots`.

    It chooses as many as the client can use within its share, and at most `max_yielding`. Each comes from the client
    that holds the most slots at that point, among those with a sequence that may yield. That client must hold more than
    its share. Its sequence with the last place yields first. None yields to a beam search.
    """
    held, client = slots_of(running), newcomer.request.client_id
    if held[client] or newcomer.width > 1:
        return []
    limit = share(queue, held, num_slots)
    num_wanted = min(queue.num_of(client), limit) - (num_slots - held.total())
    if max_yielding is not None:
        num_wanted = min(num_wanted, max_yielding)
    candidates: dict[int | None, list[Sequence]] = {}
    for sequence in sorted(running, key=turns.place):
        if _may_yield(sequence, newcomer):
            candidates.setdefault(sequence.request.client_id, []).append(sequence)
    yielding: list[Sequence] = []
    while candidates and len(yielding) < num_wanted:
        largest = max(candidates, key=lambda other: held[other])
        if held[largest] <= limit:
            break
        yielding.append(candidates[largest].pop())
        held[largest] -= 1
        if not candidates[largest]:
            del candidates[largest]
    return yielding


def _may_yield(sequence: Sequence, newcomer: Sequence) -> bool:
    return (
        sequence.search is None
        and not sequence.must_reread
        and sequence.request.priority <= newcomer.request.priority
        # A sequence yields only after a new token since its admission. So every admission makes progress, and every
        # sequence ends.
        and len(sequence.output.token_ids) > sequence.resumed_at
    )


# -- shares of a step's tokens


def share_tokens(
    remaining: abc.Sequence[int], budget: int, chunking: Chunking, unit: int, *, whole: int | None = None
) -> list[int]:
    """Share a step's `budget` of tokens among prompts. `remaining` has the number of unread tokens of each. Returns the
    number of tokens that each prompt reads.

    With "first_come", prompts are read one after another. With "equal_progress", all prompts progress equally, in units
    of `unit` tokens. If `whole` is given, prompts are read one after another, and a prompt with at most `whole` tokens
    left is read entirely or not at all.
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
        unfinished = [i for i, count in enumerate(remaining) if count]
        while unfinished and budget:
            for i in unfinished:
                num_more = min(unit, remaining[i] - shares[i], budget)
                shares[i] += num_more
                budget -= num_more
            unfinished = [i for i in unfinished if shares[i] < remaining[i]]
    return shares
