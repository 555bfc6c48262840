"""Who is served in a turn: the order of those who wait, and how a turn's tokens are shared among prompts.

Pure decisions; `loop.py` carries them out. Whoever waits stands in the order of priority; of equals, clients take
turns, and the requests of one stand in the order of their arrival. A request that was preempted keeps its place.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.config import Chunking
from weft.engine.request import Request


class WaitingQueue:
    """Requests without a slot, the most important first."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        i = self._index(request)
        return i < len(self._requests) and self._requests[i] is request

    @property
    def first(self) -> Request:
        """The most important; there must be one."""
        return self._requests[0]

    def add(self, request: Request) -> None:
        """Queue a request at its place."""
        bisect.insort(self._requests, request, key=place)

    def remove(self, request: Request) -> None:
        """Take a request out, which is there."""
        assert request in self
        del self._requests[self._index(request)]

    def _index(self, request: Request) -> int:
        """Where a request stands, if it is there."""
        i = bisect.bisect_left(self._requests, place(request), key=place)
        # Requests of several sources may have the same number.
        while i + 1 < len(self._requests) and self._requests[i] is not request:
            if place(self._requests[i + 1]) != place(request):
                break
            i += 1
        return i


def place(request: Request) -> tuple[float, int, int]:
    """What orders requests: the least is served first."""
    return (-request.priority, request.turn, request.id)


@dataclass
class _Line:
    """The requests of one client that wait."""

    last: int
    length: int = 0


class Turns:
    """Numbers turns so that clients go one after another (fair queuing): a client's next request has the turn after its
    last one's that waits, but never one that was over when it came. Those who name no client are one."""

    def __init__(self) -> None:
        self._now = 0
        self._lines: dict[int | None, _Line] = {}

    def take(self, request: Request) -> None:
        """A request came."""
        line = self._lines.setdefault(request.client, _Line(self._now))
        line.last, line.length = max(line.last, self._now) + 1, line.length + 1
        request.turn, request.has_turn = line.last, True

    def admit(self, request: Request) -> None:
        """A request is served."""
        self._now = max(self._now, request.turn)
        self.forget(request)

    def forget(self, request: Request) -> None:
        """A request waits no longer. One that was forgotten before, or is preempted, changes nothing."""
        if not request.has_turn:
            return
        request.has_turn = False
        line = self._lines[request.client]
        line.length -= 1
        if not line.length:
            del self._lines[request.client]


def victim(requests: Sequence[Request]) -> Request:
    """Who is preempted: the least important, of those the last that came."""
    return max(requests, key=place)


def share_tokens(
    remaining: Sequence[int], budget: int, chunking: Chunking, unit: int, *, whole: bool = False
) -> list[int]:
    """How many of its `remaining` tokens each prompt reads in a turn that may read `budget`.

    `"first_come"`: one after another; `"equal_progress"`: all get the same, in steps of `unit`. `whole`: a prompt is
    read at once or not at all.
    """
    shares = [0] * len(remaining)
    if whole:
        for i, count in enumerate(remaining):
            if count > budget:
                break
            shares[i], budget = count, budget - count
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
