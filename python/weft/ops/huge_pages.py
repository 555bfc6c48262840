"""Memory for weights on the CPU, in huge pages if the system supports them.

Reading weights from huge pages is up to 1.5 times as fast, because fewer addresses must be translated.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.runtime.host_memory import advise_huge_pages

_CHUNK = 32 << 20
_ALIGNMENT = 64


class _Chunks(threading.local):
    """The chunk that a thread allocates from. It lives as long as any tensor in it."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.taken = 0


_chunks = _Chunks()


def settled(tensor: Tensor) -> Tensor:
    """Copy a CPU tensor to huge pages. Returns the copy, which is contiguous."""
    return reserved(tensor.shape, tensor.dtype).copy_(tensor)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a CPU tensor for a short time. The system gets the memory back when the result is freed: an allocator
    would keep it, and a model's weights are converted one after another."""
    if tensor.dtype is dtype or not tensor.numel():
        return tensor.to(dtype)
    return temporary(tensor.shape, dtype).copy_(tensor)


def temporary(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor for a short time, as that of `converted`. It has at least one element."""
    return _mapped(math.prod(shape) * dtype.itemsize).view(dtype).view(tuple(shape))


def reserved(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor in huge pages, right after the thread's previous ones. Its values are zero. It takes memory
    when it is written."""
    used = math.prod(shape) * dtype.itemsize
    size = -(-used // _ALIGNMENT) * _ALIGNMENT
    if _chunks.taken + size > _chunks.memory.numel():
        _chunks.memory, _chunks.taken = _mapped(max(size, _CHUNK)), 0
    # Nothing else was ever there, so it is zero.
    memory = _chunks.memory.narrow(0, _chunks.taken, used)
    _chunks.taken += size
    return memory.view(dtype).view(tuple(shape))


def _mapped(size: int) -> Tensor:
    """Map new memory, uint8 [size]. It is freed with the last tensor in it."""
    # Few systems use huge pages for shared memory, which is mmap's default.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_huge_pages(memory)
    return torch.frombuffer(memory, dtype=torch.uint8)
