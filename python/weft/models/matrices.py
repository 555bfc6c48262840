"""The matrices of a mixture's experts, read one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar, overload

import torch
from torch import Tensor

from weft.ops.quantized import Matrix, Quantized

AnyMatrix = TypeVar("AnyMatrix", Tensor, Matrix)
"""The type of a matrix that a function keeps."""


def joined(first: AnyMatrix, second: AnyMatrix, dim: int) -> AnyMatrix:
    """Concatenate two parts of a matrix along a leading dimension."""
    if isinstance(first, Quantized) and isinstance(second, Quantized):
        return Quantized.cat([first, second], dim)
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    return torch.cat([first, second], dim)


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
