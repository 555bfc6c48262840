"""Whether there is room for more requests: bounds on what those hold together that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.errors import CapacityError
from weft.executor.held import request_bytes
from weft.executor.types import ExecutorConfig, Request


class QueueSize(NamedTuple):
    """What a request adds to the queue."""

    num_sequences: int
    num_bytes: int


def queue_size(request: Request, config: ExecutorConfig) -> QueueSize:
    """What a request would add. One with more sequences than may be will be refused: none of them waits."""
    given = request.sampling_config.num_requests
    num_sequences = given if given <= config.max_return_sequences else 0
    return QueueSize(num_sequences, request_bytes(request, num_sequences))


def check_room(config: ExecutorConfig, waiting: int, pending_bytes: int, sizes: Sequence[QueueSize]) -> None:
    """Raise `CapacityError` where sequences that wait, or bytes that requests hold, would be beyond their bounds."""
    more, most = sum(size.num_sequences for size in sizes), config.queue_size
    if waiting + more > most:
        raise CapacityError(
            f"the queue is full: {waiting} sequences wait, {more} more would be above max_queue_size, {most}; "
            "try again when requests were begun or have ended, or raise ExecutorConfig.max_queue_size"
        )
    held, most = sum(size.num_bytes for size in sizes), config.max_pending_bytes
    if pending_bytes + held > most:
        raise CapacityError(
            f"the queue is full: requests that have not ended hold {pending_bytes} bytes, {held} more would be above "
            f"max_pending_bytes, {most}; try again when requests have ended, or raise "
            "ExecutorConfig.max_pending_bytes"
        )
