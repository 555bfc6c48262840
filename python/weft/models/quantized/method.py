"""The interface of a method of quantised checkpoints.

A method stores a matrix as several tensors, whose names begin with that of the matrix or of its module. It checks their
shapes and dtypes, and turns them into rows of blocks (`weft.ops.quantized`) when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.ops.formats import Format

WEIGHT = ".weight"
"""The end of a matrix's name after that of its module."""

SCALE_DTYPES = ("F32", "F16", "BF16")

UNUSED = (
    *(
        f".{kind}_{part}"
        for kind in ("input", "output", "k", "v", "q", "kv")
        for part in ("scale", "zero_point")
    ),
    ".activation_scale",
    ".input_scale_ub",
    ".prob_output_scale",
)
"""Ends of the names of tensors that weft leaves aside: factors of activations, and of keys and values in a cache. weft
computes factors of its own from the numbers."""


class Parts(Protocol):
    """The tensors of a checkpoint. `dtype_of` is a tensor's dtype as safetensors names it, "" if it is missing, and
    `shape_of` its shape, (0,) if it is missing. `take_part` checks the shape and the dtype of a tensor and returns it
    as it is stored, on the CPU; `take_small` returns its contents also on the device "meta". Both raise
    `ModelError`."""

    directory: Path

    def __contains__(self, name: str) -> bool: ...
    def dtype_of(self, name: str) -> str: ...
    def shape_of(self, name: str) -> tuple[int, ...]: ...
    def take_part(self, name: str, dtypes: Sequence[str], *shape: int) -> Tensor: ...
    def take_small(self, name: str, dtypes: Sequence[str], *shape: int) -> Tensor: ...


@dataclass(frozen=True)
class Blocks:
    """A matrix of `shape` [out, in], of which `read` makes rows of blocks, uint8 [out, row bytes] on the CPU. `dtype`
    is that of its factors, and the one to dequantise to. `order` is that of the inputs, as in `Quantized`."""

    shape: tuple[int, int]
    format: Format
    read: Callable[[], Tensor]
    dtype: torch.dtype
    order: Tensor | None = None


@dataclass(frozen=True)
class Floats:
    """A matrix of `shape` [out, in] that no format of blocks fits. `read` returns its numbers in a dtype, on the CPU.
    `dtype` is that of its factors, and the one to keep it in."""

    shape: tuple[int, int]
    dtype: torch.dtype
    read: Callable[[torch.dtype], Tensor]


@dataclass(frozen=True)
class Area:
    """The numbers of a matrix that share a factor: `rows` times `columns` adjacent ones. 0 means all."""

    rows: int
    columns: int

    def counts(self, num_outputs: int, num_inputs: int) -> tuple[int, int]:
        """The number of areas along the outputs and along the inputs of a matrix."""
        return -(-num_outputs // (self.rows or num_outputs)), -(-num_inputs // (self.columns or num_inputs))

    def shapes(self, num_outputs: int, num_inputs: int) -> list[tuple[int, ...]]:
        """The shapes that the factors of a matrix may have."""
        rows, columns = self.counts(num_outputs, num_inputs)
        shorter: list[tuple[int, ...]] = [(rows,)] if columns == 1 else []
        # modelopt gives each area of a grid dimensions of 1.
        spread = [(rows, 1, columns, 1)] if self.rows and self.columns else []
        return [(rows, columns), *spread, *shorter, *([()] if rows == columns == 1 else [])]


TENSOR, CHANNEL = Area(0, 0), Area(1, 0)
"""One factor for a matrix, and one for each of its outputs."""


@dataclass(frozen=True)
class Method:
    """A method of quantised checkpoints, with the options that a config.json gives."""

    title: ClassVar[str]
    """The name of the method in messages."""
    packed: ClassVar[str] = ""
    """The end of the name of the tensor that has a matrix's codes, after the name of its module."""
    helpers: ClassVar[tuple[str, ...]] = ()
    """Ends of the names of the other tensors of a matrix."""
    has_idle_biases: ClassVar[bool] = False
    """Checkpoints may have biases of zeros that the model lacks."""
    copies_embeddings: ClassVar[bool] = False
    """On a CPU, embeddings are copied from the file, because people replace files of this kind while a model runs."""

    @property
    def codes_per_element(self) -> int:
        """The codes in an element of the tensor of codes."""
        return 1

    def codes_name(self, name: str) -> str:
        """The name of the tensor that has the codes of matrix `name`."""
        return name.removesuffix(WEIGHT) + self.packed

    def holds(self, parts: Parts, name: str) -> bool:
        """Whether matrix `name` is stored by this method."""
        return self.codes_name(name) in parts

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks | Floats:
        """Matrix `name`. Raises `ModelError` for tensors that are missing or wrong."""
        raise NotImplementedError

    def is_ordered(self, parts: Parts, name: str) -> bool:
        """Whether the inputs of matrix `name`, which this method stores, are not in the order of its groups."""
        return False

    def take_each(
        self, parts: Parts, name: str, count: int, num_outputs: int, num_inputs: int
    ) -> list[Blocks]:
        """The matrices of tensor `name` [count, out, in], in order. Raises `ModelError`."""
        raise ModelError(
            f"{parts.directory}: tensor {name!r} has the matrices of all experts, quantised with {self.title}; weft "
            "reads experts of this method one by one"
        )

    def is_unused(self, name: str) -> bool:
        """Whether weft leaves tensor `name` aside."""
        return name.endswith(UNUSED)

    def count(self, name: str, shape: Sequence[int]) -> int:
        """The number of parameters in tensor `name`."""
        if name.endswith(self.helpers) or self.is_unused(name):
            return 0
        return prod(shape) * (self.codes_per_element if self.packed and name.endswith(self.packed) else 1)


def refuse(parts: Parts, name: str, message: str) -> ModelError:
    """The error for tensor `name`."""
    return ModelError(f"{parts.directory}: tensor {name!r} {message}")


def take_scales(
    parts: Parts, name: str, sizes: tuple[int, int], area: Area, dtypes: Sequence[str] = SCALE_DTYPES
) -> Tensor:
    """The factors of a matrix of `sizes` [out, in], one for each area: [areas of outputs, areas of inputs]."""
    shapes = area.shapes(*sizes)
    found = parts.shape_of(name)
    return parts.take_part(name, dtypes, *(found if found in shapes else shapes[0])).view(shapes[0])
