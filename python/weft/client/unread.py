"""What nobody reads has bounds: the responses of one request are merged, and requests that have ended are forgotten.

Merging loses nothing: tokens that would have come in several responses come in one. Forgetting does, so that it comes
last: the request that ended first goes first, but never the one that ended last, nor one that somebody waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from weft.client.capacity import NO_LIMITS, ClientLimits
from weft.client.memory import answer_bytes, delta_bytes
from weft.client.responses import Response, ResponseDelta
from weft.engine.sequence import Sequence

MAX_DELTA_BYTES = 4 << 20
"""What a request's unread deltas may hold, beyond the tokens, before they are merged."""
MAX_PASSED = 64
"""Awaited requests that one which ends looks past."""
MAX_NAMED = 65_536
"""Of so many requests that were forgotten it is known that they were."""


class Unread:
    """Requests that have ended and whose last response nobody has taken, the first that ended first. Its owner's lock
    guards it. `num_forgotten` were given up since it was made."""

    def __init__(self, limits: ClientLimits = NO_LIMITS) -> None:
        self.num_forgotten = 0
        self.num_bytes = 0
        self._limits = limits
        self._ended: dict[int, Response] = {}
        self._forgotten: dict[int, None] = {}

    def add(self, response: Response, delta: ResponseDelta) -> None:
        """Keep a delta of a request until it is taken; with others, where there are too many."""
        response.deltas.append(delta)
        response.unread_bytes += delta_bytes(delta)
        if self._limits.max_unread_responses is None:
            return
        # Of each sequence one delta stays, so the bound grows with them: merging stays seldom.
        most = max(self._limits.max_unread_responses, 2 * len(response.sequences))
        if len(response.deltas) > most or response.unread_bytes > MAX_DELTA_BYTES:
            response.deltas = deque(merged(response.deltas))
            # What is left can't be merged further, and counts for nothing here.
            response.unread_bytes = 0

    def end(self, response: Response) -> list[Response]:
        """A request has ended. Gives those that are to be forgotten for it."""
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
                self._ended[other.id] = self._ended.pop(other.id)  # not looked at again for a while
            else:
                gone.append(other)
                left -= other.num_bytes
        return gone

    def remove(self, response: Response) -> None:
        """Its last response was taken, or nobody will."""
        if self._ended.pop(response.id, None) is not None:
            self.num_bytes -= response.num_bytes

    def was_forgotten(self, request_id: int) -> bool:
        """Whether a request was given up, unread, of those that it is still known of."""
        return request_id in self._forgotten


def merged(deltas: Iterable[ResponseDelta]) -> list[ResponseDelta]:
    """One delta for each answer, in the order of their last ones; what came of an answer comes in one."""
    kept: dict[Sequence | None, ResponseDelta] = {}
    for delta in deltas:
        before = kept.pop(delta.sequence, None)
        kept[delta.sequence] = delta if before is None else delta._replace(start=before.start)
    return list(kept.values())
