"""Weights without contents, for models on a fake CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from weft.models.config import ModelConfig
from weft.models.matrices import Matrices
from weft.models.random_weights import RandomWeights
from weft.models.stored import stored_tensors
from weft.ops.formats import Format
from weft.ops.quantized import Matrix, Quantized


class FakeWeights:
    """The tensors of a checkpoint by name, in one dtype, without contents. With a `format`, matrices of whole blocks
    are quantised. Use it in a `FakeTensorMode`."""

    def __init__(self, directory: Path, dtype: torch.dtype, format: Format | None = None) -> None:
        self.directory = directory
        self.device = torch.device("cuda")
        self.dtype, self._format = dtype, format
        self._stored = stored_tensors(directory)

    def take(self, name: str, *shape: int) -> Tensor:
        assert self._stored[name].shape == shape, name
        return torch.empty(*shape, dtype=self.dtype, device=self.device)

    def take_matrix(self, name: str, *shape: int) -> Matrix:
        whole = self.take(name, *shape)
        if self._format is None or shape[-1] % self._format.block.inputs:
            return whole
        size = shape[-1] // self._format.block.inputs * self._format.block.bytes
        return Quantized(whole.new_empty(*shape[:-1], size, dtype=torch.uint8), self._format, shape[-1])

    def take_dense(self, name: str, *shape: int) -> Tensor:
        return self.take(name, *shape)

    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
        return Matrices(len(names), lambda index: self.take_matrix(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        whole = self.take_matrix(name, *shape)
        return Matrices(len(whole), lambda index: whole[index])

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self.take(name, *shape).float()

    def take_all(self) -> dict[str, Tensor]:
        return {name: self.take(name, *stored.shape) for name, stored in self._stored.items()}

    def drop_all(self, prefix: str) -> None:
        """There may be other tensors."""

    def __contains__(self, name: str) -> bool:
        return name in self._stored


class EmptyWeights(RandomWeights):
    """Tensors of any name and shape, without contents. There are no biases and no norms of heads. Use it in a
    `FakeTensorMode`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, 0, "cuda")

    def take(self, name: str, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def __contains__(self, name: str) -> bool:
        return name == "lm_head.weight"
