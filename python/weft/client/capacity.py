"""Whether there is room for more requests: bounds on what those hold together that have not ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from weft.client.memory import request_bytes
from weft.core.request import OWN_NAMES, FieldNames, Request
from weft.errors import CapacityError, InputError


@dataclass(frozen=True)
class ClientLimits:
    """Bounds on what fronts leave with a client; None bounds nothing.

    A request has at most `max_sequences` sequences. `max_queue_size` sequences wait at most, and requests that have not
    ended hold `max_pending_bytes` together. Of a request that nobody reads, `max_unread_responses` are kept before they
    are merged; requests that have ended unread hold `max_unread_bytes` before the first of them are forgotten. Where
    that is bounded, only answers are kept of them: no guide, and of an error its text.
    """

    max_sequences: int = 1024
    max_queue_size: int | None = None
    max_pending_bytes: int | None = None
    max_unread_responses: int | None = None
    max_unread_bytes: int | None = None


NO_LIMITS = ClientLimits()


class QueueSize(NamedTuple):
    """What requests add to the queue."""

    num_sequences: int
    num_bytes: int


def queue_size(request: Request) -> QueueSize:
    """What a request would add."""
    return QueueSize(request.num_sequences, request_bytes(request))


def check_sequences(request: Request, limits: ClientLimits) -> None:
    """Raise `InputError` for a request of more sequences than one may have."""
    limit, names = limits.max_sequences, request.names
    if request.num_sequences > limit:
        advice = names.or_raise("max_sequences") if "max_sequences" in names.settings else ""
        raise InputError(
            f"{names.answers} is {request.num_sequences}, but {names.label('max_sequences')} is {limit}: a request has "
            f"{limit} sequences at most; lower it{advice}"
        )


def check_room(
    limits: ClientLimits,
    waiting: int,
    pending_bytes: int,
    sizes: Iterable[QueueSize],
    names: FieldNames = OWN_NAMES,
) -> None:
    """Raise `CapacityError` where sequences that wait, or bytes that requests hold, would be beyond their bounds."""
    sizes = list(sizes)
    more, most = sum(size.num_sequences for size in sizes), limits.max_queue_size
    if most is not None and waiting + more > most:
        raise CapacityError(
            f"the queue is full: {waiting} sequences wait, {more} more would be above max_queue_size, {most}; "
            f"try again when requests were begun or have ended{names.or_raise('max_queue_size')}"
        )
    held, most = sum(size.num_bytes for size in sizes), limits.max_pending_bytes
    if most is not None and pending_bytes + held > most:
        raise CapacityError(
            f"the queue is full: requests that have not ended hold {pending_bytes} bytes, {held} more would be above "
            f"max_pending_bytes, {most}; try again when requests have "
            f"ended{names.or_raise('max_pending_bytes')}"
        )
