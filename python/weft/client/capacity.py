"""Limits on the requests that a client holds at a time, and the checks before it takes more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from weft.client.memory import request_bytes
from weft.core.request import OWN_NAMES, FieldNames, Request
from weft.errors import CapacityError, InputError


@dataclass(frozen=True)
class ClientLimits:
    """Limits on the requests of a client. None: no limit.

    - `max_sequences`: sequences of one request.
    - `max_queue_size`: sequences that wait.
    - `max_pending_bytes`: estimated size of all requests that have not ended.
    - `max_unread_responses`: unread responses of one request. Above it, they are merged.
    - `max_unread_bytes`: estimated size of the requests that have ended with unread responses. Above it, the oldest are
      forgotten. With this limit an ended request keeps only its answer: its guide is released, and an error keeps only
      its text.
    """

    max_sequences: int = 1024
    max_queue_size: int | None = None
    max_pending_bytes: int | None = None
    max_unread_responses: int | None = None
    max_unread_bytes: int | None = None


NO_LIMITS = ClientLimits()


class QueueSize(NamedTuple):
    """The space that a request takes in the queue; `num_bytes` is an estimate."""

    num_sequences: int
    num_bytes: int


def queue_size(request: Request) -> QueueSize:
    """The space that a request would take in the queue."""
    return QueueSize(request.num_sequences, request_bytes(request))


def check_sequences(request: Request, limits: ClientLimits) -> None:
    """Raise `InputError` for a request with more than `limits.max_sequences` sequences."""
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
    """Raise `CapacityError` if requests of these `sizes` would exceed `max_queue_size` or `max_pending_bytes`.
    `waiting` sequences and `pending_bytes` are in use already."""
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
