"""The memory of a CPU graph: what is allocated in it while it is captured, and what else its nodes name.

A tensor that a launched function allocates is the graph's. When nothing in Python holds it any more, its memory is used
again by what is captured after it on the same stream: a replay runs that after it, too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from weft.errors import GraphError

_GRAIN = 256
_CHUNK = 1 << 20


class Arena:
    """Memory that is handed out and comes back. Graphs that never run at the same time may share one."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._free: list[tuple[int, int]] = []  # sizes and addresses
        self._next = self._end = 0
        self.num_taken = 0

    @property
    def num_bytes(self) -> int:
        """What it holds."""
        return sum(chunk.numel() for chunk in self._chunks)

    def __contains__(self, address: int) -> bool:
        return any(0 <= address - chunk.data_ptr() < chunk.numel() for chunk in self._chunks)

    def alias(self, tensor: Tensor) -> Tensor:
        """The same memory, by a tensor that does not keep it from being used again."""
        address = tensor.untyped_storage().data_ptr()
        for chunk in self._chunks:
            start = address - chunk.data_ptr()
            if 0 <= start < chunk.numel():
                memory = chunk[start : start + tensor.untyped_storage().nbytes()].view(tensor.dtype)
                return memory.as_strided(
                    tensor.shape, tensor.stride(), memory.storage_offset() + tensor.storage_offset()
                )
        return tensor

    def take(self, num_bytes: int) -> Tensor:
        """At least `num_bytes` bytes, uint8 [num_bytes], aligned to 64; they come back when no tensor is in them."""
        size = -(-max(num_bytes, 1) // _GRAIN) * _GRAIN
        address, size = self._find(size)
        block = (ctypes.c_uint8 * size).from_address(address)
        self.num_taken += 1
        weakref.finalize(block, self._give_back, size, address)
        return torch.frombuffer(block, dtype=torch.uint8)[:num_bytes]

    def _find(self, size: int) -> tuple[int, int]:
        fitting = [entry for entry in self._free if size <= entry[0] <= 2 * size]
        if fitting:
            best = min(fitting)
            self._free.remove(best)
            return best[1], best[0]
        if self._end - self._next < size:
            chunk = torch.empty(max(size, _CHUNK) + _GRAIN, dtype=torch.uint8)
            self._chunks.append(chunk)
            self._next = -(-chunk.data_ptr() // _GRAIN) * _GRAIN
            self._end = chunk.data_ptr() + chunk.numel()
        address, self._next = self._next, self._next + size
        return address, size

    def _give_back(self, size: int, address: int) -> None:
        self.num_taken -= 1
        self._free.append((size, address))


_holds_weakly = False


def check_memory(enabled: bool) -> None:
    """Whether graphs captured from now on check before each replay that the tensors that they name still live; for
    tests. A graph that does not check keeps them alive."""
    global _holds_weakly
    _holds_weakly = enabled


class GraphMemory:
    """What one graph holds on to: its `arena`, and the tensors of others that its nodes name."""

    def __init__(self, arena: Arena | None = None) -> None:
        self.arena = arena or Arena()
        self._held: dict[int, object] = {}
        self._checks = _holds_weakly

    def allocate(self, like: Tensor) -> Tensor:
        """A tensor of the shape, strides and dtype of `like`, which may be a meta tensor."""
        if like.numel() == 0:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        memory = self.arena.take(like.untyped_storage().nbytes()).view(like.dtype)
        return memory.as_strided(like.shape, like.stride(), like.storage_offset())

    def of_node(self, value: Any) -> Any:
        """An argument as a node of the graph may keep it: tensors, in lists and tuples too, don't hold graph memory."""
        if isinstance(value, Tensor):
            return self.arena.alias(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.of_node(part) for part in value)
        return value

    def hold(self, values: Iterable[Any]) -> None:
        """Note the tensors among `values`, in lists and tuples too."""
        for value in values:
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                address = storage.data_ptr()
                if address not in self._held and address not in self.arena:
                    self._held[address] = self._hold(storage)
            elif isinstance(value, (list, tuple)):
                self.hold(value)

    def _hold(self, storage: torch.UntypedStorage) -> object:
        return StorageWeakRef(storage) if self._checks else storage

    def check(self) -> None:
        """Raise `GraphError` where a tensor that a node names was freed, if this is checked."""
        if not self._checks:
            return
        freed = [address for address, held in self._held.items() if held.expired()]  # type: ignore[attr-defined]
        if freed:
            raise GraphError(
                f"the graph works on {len(freed)} tensors that were freed since its capture; keep what a launched "
                "function uses alive as long as the graph, or allocate it inside the function"
            )
