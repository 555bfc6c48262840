"""Quantised matrices, as rows of blocks: the bits of a file, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import EllipsisType

import torch
from torch import Tensor

from weft import _core
from weft.ops.formats import Format
from weft.ops.library import require

PIECE = 1 << 20
"""The numbers that are converted at once to another dtype than float32."""

Index = int | slice | EllipsisType | Tensor


class Quantized:
    """A matrix of a quantised format: uint8 `data` [..., row bytes], each row the blocks of one output in the order of
    inputs. `csrc/kernels/layer/formats.h` describes blocks. `num_inputs` are the numbers of a row; its last block may
    have more. The last dimension of `data` is contiguous, the others have any strides.

    The operations are those of a tensor [..., num_inputs] on its leading dimensions, and need no copies where those of
    a tensor need none. Along the inputs, `split` and `cat` work at the bounds of blocks. Raises `InputError` for other
    data, and where a tensor's operation does not work.

    order: int32 [num_inputs] on the CPU: number i of a row of blocks is that of input order[i]. The inputs of such
        matrices can be neither split nor joined. None: number i is that of input i.
    """

    def __init__(self, data: Tensor, format: Format, num_inputs: int, order: Tensor | None = None) -> None:
        block = format.block
        size = -(-num_inputs // block.inputs) * block.bytes
        require(format.is_quantized, f"{format.name} has no blocks; give the tensor itself")
        require(
            data.dtype is torch.uint8 and data.dim() > 0 and data.shape[-1] == size,
            f"{num_inputs} inputs in {format.name} need rows of {size} uint8, not {list(data.shape)} {data.dtype}",
        )
        require(data.stride(-1) == 1 or size <= 1, "the bytes of a row must be contiguous")
        require(
            order is None or (order.dtype is torch.int32 and order.is_cpu and order.shape == (num_inputs,)),
            f"the order of {num_inputs} inputs is as many int32 on the CPU",
        )
        self.data, self.format, self.num_inputs, self.order = data, format, num_inputs, order

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.data.shape[:-1], self.num_inputs))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def is_meta(self) -> bool:
        return self.data.is_meta

    @property
    def is_cpu(self) -> bool:
        return self.data.is_cpu

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks."""
        return self.data.nbytes

    def dim(self) -> int:
        return self.data.dim()

    def numel(self) -> int:
        return prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Quantized({list(self.shape)}, {self.format.name}, {self.device})"

    def view(self, *sizes: int) -> Quantized:
        return self._with(self.data.view(*self._row_sizes(sizes)))

    def reshape(self, *sizes: int) -> Quantized:
        return self._with(self.data.reshape(*self._row_sizes(sizes)))

    def _row_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes of `data` for those of a matrix, whose last one keeps the inputs of a row."""
        rows = prod(size for size in sizes[:-1] if size != -1)
        whole = sizes[-1] == -1 and -1 not in sizes[:-1] and rows == prod(self.data.shape[:-1])
        require(
            bool(sizes) and (sizes[-1] == self.num_inputs or whole),
            f"a view of {self!r} has rows of {self.num_inputs} inputs, not the sizes {list(sizes)}",
        )
        return (*sizes[:-1], self.data.shape[-1])

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Quantized:
        return self._with(self.data.unflatten(self._leading(dim), tuple(sizes)))

    def flatten(self, start: int, end: int) -> Quantized:
        return self._with(self.data.flatten(self._leading(start), self._leading(end)))

    def transpose(self, first: int, second: int) -> Quantized:
        return self._with(self.data.transpose(self._leading(first), self._leading(second)))

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> list[Quantized]:
        """As a tensor's. Along the inputs all sizes but the last are multiples of a block's inputs."""
        if dim % self.dim() != self.dim() - 1:
            return [self._with(part) for part in self.data.split(sizes, dim)]
        block, counts = self.format.block, []
        if isinstance(sizes, int):
            counts = [min(sizes, self.num_inputs - i) for i in range(0, self.num_inputs, sizes)]
        else:
            counts = list(sizes)
        require(
            self.order is None, f"the inputs of {self!r} are in an order of their own, and can't be split"
        )
        require(
            sum(counts) == self.num_inputs and all(count % block.inputs == 0 for count in counts[:-1]),
            f"the inputs of {self!r} can't be split into {counts}: blocks have {block.inputs} inputs",
        )
        bytes_of = [-(-count // block.inputs) * block.bytes for count in counts]
        parts = self.data.split(bytes_of, -1)
        return [Quantized(part, self.format, count) for part, count in zip(parts, counts, strict=True)]

    def chunk(self, count: int, dim: int = 0) -> list[Quantized]:
        return self.split(-(-self.shape[dim] // count), dim)

    def unbind(self, dim: int = 0) -> list[Quantized]:
        return [self._with(part) for part in self.data.unbind(self._leading(dim))]

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Quantized:
        """Some of the rows. An index of the inputs must be whole: `:`."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) == self.dim() and Ellipsis not in [i for i in indices if not isinstance(i, Tensor)]:
            require(
                isinstance(indices[-1], slice) and indices[-1] == slice(None),
                f"some inputs of {self!r} can't be taken by an index; use split",
            )
        return self._with(self.data[indices])

    def contiguous(self) -> Quantized:
        return self._with(self.data.contiguous())

    def to(self, device: torch.device | str) -> Quantized:
        return self._with(self.data.to(device))

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers, a new tensor on the same device. Each is the float32 product of its code and its scale, plus any
        minimum, rounded to `dtype`."""
        if self.is_meta:
            return self.data.new_empty(self.shape, dtype=dtype)
        if not self.is_cpu:
            return self.to("cpu").dequantized(dtype).to(self.device)
        if self.order is not None:
            numbers = Quantized(self.data, self.format, self.num_inputs).dequantized(dtype)
            return numbers.index_select(-1, self.order.argsort())
        out = torch.empty(self.shape, dtype=dtype)
        rows = self if self.dim() <= 4 else self.reshape(-1, self.num_inputs)
        flat = out.view(*rows.shape)
        if dtype is torch.float32:
            rows._write(flat)
            return out
        rows, flat = (
            rows.flatten(0, -2) if rows.dim() > 1 else rows.reshape(1, -1),
            flat.view(-1, self.num_inputs),
        )
        count = max(1, PIECE // max(1, self.num_inputs))
        for part, place in zip(rows.split(count), flat.split(count), strict=True):
            numbers = torch.empty(part.shape)
            part._write(numbers)
            place.copy_(numbers)
        return out

    def _write(self, out: Tensor) -> None:
        """Write the numbers of up to three leading dimensions to `out`, float32 and contiguous."""
        sizes, strides = row_sizes(self.data)
        _core.widen_blocks_cpu(
            self.format, self.data.data_ptr(), sizes, strides, self.num_inputs, out.data_ptr(),
            torch.get_num_threads(),
        ).run()  # fmt: skip

    @staticmethod
    def cat(parts: Sequence[Quantized], dim: int = 0) -> Quantized:
        """Concatenate matrices of one format as torch.cat does tensors. Along the inputs all but the last end with a
        whole block."""
        first = parts[0]
        along_inputs = dim % first.dim() == first.dim() - 1
        require(
            all(part.format is first.format for part in parts),
            f"{', '.join(map(repr, parts))} can't be one matrix: they have different formats",
        )
        require(
            all(has_order_of(part, first) for part in parts)
            and not (along_inputs and first.order is not None),
            f"{', '.join(map(repr, parts))} can't be one matrix: their inputs are in different orders",
        )
        require(
            not along_inputs or all(part.num_inputs % first.format.block.inputs == 0 for part in parts[:-1]),
            f"the inputs of {', '.join(map(repr, parts))} can't be joined: blocks have {first.format.block.inputs}",
        )
        inputs = sum(part.num_inputs for part in parts) if along_inputs else first.num_inputs
        require(
            along_inputs or all(part.num_inputs == inputs for part in parts), "all parts need the same inputs"
        )
        if first.is_meta:  # torch would import its compiler to concatenate
            shape = list(first.data.shape)
            shape[dim] = sum(part.data.shape[dim] for part in parts)
            return Quantized(first.data.new_empty(shape), first.format, inputs, first.order)
        return Quantized(torch.cat([part.data for part in parts], dim), first.format, inputs, first.order)

    def _with(self, data: Tensor) -> Quantized:
        return Quantized(data, self.format, self.num_inputs, self.order)

    def _leading(self, dim: int) -> int:
        """The number of a leading dimension, from 0."""
        dim = dim % self.dim()
        require(dim < self.dim() - 1, f"only the leading dimensions of {self!r} can change, not its inputs")
        return dim


def has_order_of(matrix: Quantized, other: Quantized) -> bool:
    """Whether the inputs of both matrices are in the same order."""
    if matrix.order is None or other.order is None:
        return matrix.order is other.order
    return torch.equal(matrix.order, other.order)


def row_sizes(data: Tensor) -> tuple[list[int], list[int]]:
    """The sizes and the strides in elements of the rows of `data`, which has at most three leading dimensions: three
    each, for the kernels."""
    missing = 4 - data.dim()
    return [1] * missing + list(data.shape[:-1]), [0] * missing + list(data.stride()[:-1])


Matrix = Tensor | Quantized
"""A matrix of weights [..., out, in]."""
