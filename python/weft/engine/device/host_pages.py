"""Pages in the host's memory: where cached pages go that must leave the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.models.base import PagedKV
from weft.runtime.interface import Runtime


@dataclass(frozen=True)
class HostPages:
    """As many pages of each cache as `num_pages`, page-locked on CUDA. `tensors[i]` are those of cache i: [num_pages,
    num_layers, page_size, 2, num_kv_heads, head_dim]."""

    num_pages: int
    tensors: Sequence[Tensor]

    @classmethod
    def allocate(cls, runtime: Runtime, caches: Sequence[PagedKV], num_pages: int) -> HostPages:
        """Room for so many pages of all these caches."""
        shapes = [(num_pages, *cache.page(0).shape) for cache in caches]
        tensors = [
            runtime.pinned(shape, cache.data.dtype) for shape, cache in zip(shapes, caches, strict=True)
        ]
        return cls(num_pages, tensors)
