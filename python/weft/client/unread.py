"""Limits unread responses: merges the deltas of one request, and forgets requests that have ended.

Merging loses no tokens: several deltas become one. Forgetting loses an answer, so it is the last resort. The request
that ended first is forgotten first. The one that ended last, and those that a caller waits for, are never forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from weft.client.capacity import NO_LIMITS, ClientLimits, answer_bytes, delta_bytes
from weft.client.responses import Response, ResponseDelta
from weft.engine.sequence import Sequence

MAX_DELTA_BYTES = 4 << 20
"""Under `max_unread_responses`, a request's deltas are also merged if they hold more bytes than this, without
tokens."""
MAX_PASSED = 64
"""One search for requests to forget skips at most this many awaited ones. This bounds the time to end a request."""
MAX_NAMED = 65_536
"""The limit on forgotten requests whose numbers are remembered."""


class Unread:
    """The requests that have ended but whose last response is not taken, in the order in which they ended. The owner's
    lock guards it. `num_forgotten` counts the requests forgotten so far."""

    def __init__(self, limits: ClientLimits = NO_LIMITS) -> None:
        self.num_forgotten = 0
        self.num_bytes = 0
        self._limits = limits
        self._ended: dict[int, Response] = {}
        self._forgotten: dict[int, None] = {}

    def add(self, response: Response, delta: ResponseDelta) -> None:
        """Append a delta to its request. Merges the request's deltas if there are too many."""
        response.deltas.append(delta)
        response.unread_bytes += delta_bytes(delta)
        if self._limits.max_unread_responses is None:
            return
        # Merging leaves one delta for each sequence. The limit grows with the sequences, so that merging stays rare.
        most = max(self._limits.max_unread_responses, 2 * len(response.sequences))
        if len(response.deltas) > most or response.unread_bytes > MAX_DELTA_BYTES:
            response.deltas = deque(merged(response.deltas))
            # The merged deltas can't be merged further. Counting them would trigger a merge at every delta.
            response.unread_bytes = 0

    def end(self, response: Response) -> list[Response]:
        """Add a request that has ended. Returns the older requests to forget, which the caller must remove."""
        response.num_bytes += sum(answer_bytes(sequence.output) for sequence in response.sequences)
        response.num_bytes += sum(map(delta_bytes, response.deltas))
        self._ended[response.id] = response
        self.num_bytes += response.num_bytes
        gone = self._too_many(response)
        for other in gone:
            self._forgotten[other.id] = None
            self.num_forgotten += 1
            if len(self._forgotten) > MAX_NAMED:
                del self._forgotten[next(iter(self._forgotten))]
        return gone

    def _too_many(self, newest: Response) -> list[Response]:
        gone: list[Response] = []
        left, num_passed = self.num_bytes, 0
        most = self._limits.max_unread_bytes
        if most is None or left <= most:
            return gone
        waiting = iter(list(self._ended.values()))
        while left > most and num_passed < MAX_PASSED:
            other = next(waiting, newest)
            if other is newest:
                break
            if other.is_awaited:
                num_passed += 1
                # Move it to the end of the order, so that the next search does not start with it.
                self._ended[other.id] = self._ended.pop(other.id)
            else:
                gone.append(other)
                left -= other.num_bytes
        return gone

    def remove(self, response: Response) -> None:
        """Remove a request, if it is here, because its last response was taken or discarded."""
        if self._ended.pop(response.id, None) is not None:
            self.num_bytes -= response.num_bytes

    def was_forgotten(self, request_id: int) -> bool:
        """Whether this request is one of the last `MAX_NAMED` forgotten ones."""
        return request_id in self._forgotten


def merged(deltas: Iterable[ResponseDelta]) -> list[ResponseDelta]:
    """Merge deltas into one for each sequence, in the order of the sequences' last deltas."""
    kept: dict[Sequence | None, ResponseDelta] = {}
    for delta in deltas:
        before = kept.pop(delta.sequence, None)
        kept[delta.sequence] = delta if before is None else delta._replace(start=before.start)
    return list(kept.values())
