"""Pinned buffers that carry values between the host and the fixed device tensors of a graph.

A graph contains fixed addresses, and the host runs ahead of the device. So values go through a ring of pinned buffers,
which are copied eagerly before or after a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from numpy.typing import NDArray

from weft.runtime.interface import Event, Graph, Runtime, Stream

DEPTH = 3


def pinned_copy(runtime: Runtime, values: Any, dtype: torch.dtype) -> torch.Tensor:
    """A pinned tensor of `dtype` that holds `values`: numbers, an array or a tensor, of any shape."""
    given = torch.as_tensor(values, dtype=dtype)
    tensor = runtime.pinned(tuple(given.shape), dtype)
    tensor.copy_(given)
    return tensor


@dataclass(frozen=True)
class Received:
    """A copy to the host that may still run. Its values are valid until the ring reuses the buffer. A caller that has
    waited for a later copy in the same stream may read `buffer` without `wait`.

    `event` is recorded after the copy.
    """

    buffer: torch.Tensor
    event: Event

    @cached_property
    def address(self) -> int:
        """The address of the buffer's memory, for native code."""
        return self.buffer.data_ptr()

    @cached_property
    def array(self) -> NDArray[Any]:
        """The buffer's memory as an array."""
        return self.buffer.numpy()

    def is_done(self) -> bool:
        """Whether `wait` returns immediately."""
        return self.event.query()

    def wait(self) -> torch.Tensor:
        """Wait for the copy. Returns the ring's own buffer, of the device tensor's shape."""
        self.event.synchronize()
        return self.buffer


class PinnedRing:
    """A ring of three pinned buffers for one fixed `device_tensor` (contiguous, any shape and dtype).

    Each buffer has an event; the host waits for it before it reuses the buffer. Use a ring in one direction only:
    `send`, or `receive` and `start_receive`.
    """

    def __init__(self, runtime: Runtime, device_tensor: torch.Tensor) -> None:
        shape, dtype = tuple(device_tensor.shape), device_tensor.dtype
        self.device_tensor = device_tensor
        self._slots = [(runtime.pinned(shape, dtype), runtime.event()) for _ in range(DEPTH)]
        self._received = [Received(buffer, event) for buffer, event in self._slots]
        self._next = 0

    def send(self, stream: Stream, value: torch.Tensor) -> None:
        """Copy host `value` to the device tensor in the order of `stream`. The caller may reuse `value` on return."""
        buffer, event = self._take()
        buffer.copy_(value)
        stream.copy(self.device_tensor, buffer)
        stream.record(event)

    def start_receive(self, stream: Stream, rows: Sequence[int] | None = None) -> Received:
        """Copy the device tensor to the host in the order of `stream`. `rows` selects rows of the first dimension; the
        buffer's other rows keep stale values."""
        received = self._received[self._next]
        buffer, event = self._take()
        if rows is None:
            stream.copy(buffer, self.device_tensor)
        else:
            for row in rows:
                stream.copy(buffer[row], self.device_tensor[row])
        stream.record(event)
        return received

    def receive_after(self, graph: Graph) -> Received:
        """Launch a graph, and copy the device tensor to the host after it."""
        received = self._received[self._next]
        _, event = self._take()
        address, num_bytes = self._memory
        graph.replay_and_copy(received.address, address, num_bytes, event)
        return received

    @cached_property
    def _memory(self) -> tuple[int, int]:
        """The address of the device tensor's memory, and its size in bytes."""
        return self.device_tensor.data_ptr(), self.device_tensor.nbytes

    def receive(self, stream: Stream) -> torch.Tensor:
        """Wait for the work enqueued so far on `stream`, and return the device tensor's values after it."""
        return self.start_receive(stream).wait()

    def _take(self) -> tuple[torch.Tensor, Event]:
        slot = self._slots[self._next]
        self._next = (self._next + 1) % DEPTH
        slot[1].synchronize()
        return slot
