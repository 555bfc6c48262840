"""The memory of a CPU graph: tensors allocated during its capture, and other tensors that its nodes use.

A tensor that a launched function allocates lies in the graph's memory. After Python frees the tensor, work captured
later on the same stream can reuse that memory, because a replay runs in the same order. Streams of one capture run
concurrently, so each has its own part of the memory.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from weft.errors import GraphError
from weft.runtime.torch_internals import neg_view, storage_weak_ref

_GRAIN = 256
_CHUNK = 1 << 20


class Part:
    """An allocator for the work of one stream. Memory is free again when the last tensor that uses it dies."""

    def __init__(self) -> None:
        self.chunks: list[Tensor] = []
        self.num_takes = 0
        self.taken: set[int] = set()
        """Numbers of the allocations that are in use; allocations are counted from 0."""
        self._free: list[tuple[int, int]] = []  # sizes and addresses
        self._next = self._end = 0

    def take(self, num_bytes: int) -> Tensor:
        """Allocate uint8 [num_bytes], aligned to 256 bytes. The memory is free again when no tensor uses it."""
        size = -(-max(num_bytes, 1) // _GRAIN) * _GRAIN
        address, size = self._find(size)
        block = _bytes_at(address, size)
        weakref.finalize(block, self._release, self.num_takes, size, address)
        self.taken.add(self.num_takes)
        self.num_takes += 1
        return torch.frombuffer(block, dtype=torch.uint8)[:num_bytes]

    def _find(self, size: int) -> tuple[int, int]:
        # A block of more than twice the size stays free for a larger tensor.
        fitting = [entry for entry in self._free if size <= entry[0] <= 2 * size]
        if fitting:
            best = min(fitting)
            self._free.remove(best)
            return best[1], best[0]
        if self._end - self._next < size:
            chunk = torch.empty(max(size, _CHUNK) + _GRAIN, dtype=torch.uint8)
            self.chunks.append(chunk)
            self._next = -(-chunk.data_ptr() // _GRAIN) * _GRAIN
            self._end = chunk.data_ptr() + chunk.numel()
        address, self._next = self._next, self._next + size
        return address, size

    def _release(self, number: int, size: int, address: int) -> None:
        self.taken.discard(number)
        self._free.append((size, address))


class Arena:
    """Memory that several graphs share. Only one of them runs at a time. Each stream has its own part."""

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}

    def part(self, stream: int) -> Part:
        """The part of the stream with this handle."""
        return self._parts.setdefault(stream, Part())

    @property
    def num_bytes(self) -> int:
        """The total size of the chunks in bytes."""
        return sum(chunk.numel() for chunk in self._chunks)

    def chunk_at(self, address: int) -> Tensor | None:
        """The chunk (uint8) that contains `address`; None if it is not in the arena."""
        return next((c for c in self._chunks if 0 <= address - c.data_ptr() < c.numel()), None)

    @property
    def _chunks(self) -> list[Tensor]:
        return [chunk for part in self._parts.values() for chunk in part.chunks]


_holds_weakly = False


def check_memory(enabled: bool) -> None:
    """Set whether graphs captured from now on check before each replay that the tensors they use still live.

    For tests. A graph that does not check keeps its tensors alive.
    """
    global _holds_weakly
    _holds_weakly = enabled


class GraphMemory:
    """The memory that one graph keeps alive: its `arena`, and tensors from outside that its nodes use."""

    def __init__(self, arena: Arena | None = None) -> None:
        self.arena = arena or Arena()
        self._held: dict[int, object] = {}
        self._kept: list[Tensor] = []
        self.checks = _holds_weakly

    def allocate(self, stream: int, like: Tensor) -> Tensor:
        """Allocate a tensor for work on `stream` with the shape, strides and dtype of `like`, which may be a meta
        tensor."""
        if like.numel() == 0:
            return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        memory = self.arena.part(stream).take(like.untyped_storage().nbytes()).view(like.dtype)
        return memory.as_strided(like.shape, like.stride(), like.storage_offset())

    def of_node(self, value: Any) -> Any:
        """The form in which a node keeps the argument `value`. Its tensors are replaced, also those in lists and
        tuples.

        A tensor in the graph's own memory becomes an alias that does not keep the memory in use, so that later work can
        reuse it. If the graph checks its tensors, a tensor from outside becomes an alias that does not keep it alive.
        """
        if isinstance(value, Tensor):
            return self._of_node(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.of_node(part) for part in value)
        return value

    def _of_node(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        chunk = self.arena.chunk_at(address)
        if chunk is not None:
            start = address - chunk.data_ptr()
            return _like(tensor, chunk[start : start + size])
        if self.checks and size:
            return _like(tensor, torch.frombuffer(_bytes_at(address, size), dtype=torch.uint8))
        return tensor

    def keep(self, tensor: Tensor) -> None:
        """Keep a constant alive that only nodes of the graph use."""
        self._kept.append(tensor)

    def hold(self, values: Iterable[Any]) -> None:
        """Register the tensors among `values`, also those in lists and tuples. The graph keeps them alive, or checks at
        replays that they still live."""
        for value in values:
            if isinstance(value, Tensor):
                self._note(value.untyped_storage())
            elif isinstance(value, (list, tuple)):
                self.hold(value)

    def _note(self, storage: torch.UntypedStorage) -> None:
        address = storage.data_ptr()
        if storage.nbytes() and address not in self._held and self.arena.chunk_at(address) is None:
            self._held[address] = storage_weak_ref(storage) if self.checks else storage

    def check(self) -> None:
        """Raise `GraphError` if the graph checks its tensors and one that a node uses was freed."""
        if not self.checks:
            return
        freed = [address for address, held in self._held.items() if held.expired()]  # type: ignore[attr-defined]
        if freed:
            raise GraphError(
                f"the graph works on {len(freed)} tensors that were freed since its capture; keep what a launched "
                "function uses alive as long as the graph, or allocate it inside the function"
            )


def _bytes_at(address: int, size: int) -> Any:
    return (ctypes.c_uint8 * size).from_address(address)


def _like(tensor: Tensor, memory: Tensor) -> Tensor:
    """A tensor like `tensor` in `memory` (uint8), which begins at the start of the tensor's storage."""
    other = torch.empty(0, dtype=tensor.dtype)
    offset = memory.storage_offset() // tensor.element_size() + tensor.storage_offset()
    other.set_(memory.untyped_storage(), offset, tensor.shape, tensor.stride())
    if tensor.is_conj():
        other = other.conj()
    return neg_view(other) if tensor.is_neg() else other
