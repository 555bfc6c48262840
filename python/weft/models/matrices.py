"""The matrices of a mixture's experts, read one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar, overload

import torch
from torch import Tensor

from weft.ops.quantized import Matrix, Quantized

AnyMatrix = TypeVar("AnyMatrix", Tensor, Quantized)
"""The type of a matrix that keeps its kind."""


def joined(parts: Sequence[AnyMatrix], dim: int) -> AnyMatrix:
    """Concatenate matrices of one kind along a leading dimension."""
    return Quantized.cat(parts, dim) if isinstance(parts[0], Quantized) else torch.cat(parts, dim)


class Matrices(Sequence[Matrix]):
    """Matrices of which each is read when it is needed, by its index: a model's experts need not be in memory twice."""

    def __init__(self, count: int, read: Callable[[int], Matrix]) -> None:
        self.size, self.read = count, read

    def __len__(self) -> int:
        return self.size

    def split(self, *rows: slice) -> list[Matrices]:
        """The matrices of some rows of each, for all of `rows`. When an index is read in all of them before the next
        one is, its whole matrix is read once: the last one stays in memory."""
        read = lru_cache(1)(self.read)

        def part(rows: slice) -> Matrices:
            return Matrices(self.size, lambda index: read(index)[rows])

        return [part(each) for each in rows]

    @overload
    def __getitem__(self, index: int) -> Matrix: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Matrix]: ...
    def __getitem__(self, index: int | slice) -> Matrix | Sequence[Matrix]:
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(self.size))]
        if not 0 <= index < self.size:
            raise IndexError(index)
        return self.read(index)
