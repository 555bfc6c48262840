"""Weights without contents, for models on a fake CUDA device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from weft.models.matrices import Matrices
from weft.models.stored import stored_tensors


class FakeWeights:
    """The tensors of a checkpoint by name, in one dtype, without contents. Use it in a `FakeTensorMode`."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        self.directory = directory
        self.device = torch.device("cuda")
        self.dtype = dtype
        self._stored = stored_tensors(directory)

    def take(self, name: str, *shape: int) -> Tensor:
        assert self._stored[name].shape == shape, name
        return torch.empty(*shape, dtype=self.dtype, device=self.device)

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        return self.take(name, *shape)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        return self.take(name, *shape)

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        whole = self.take(name, *shape)
        return Matrices(len(whole), lambda index: whole[index])

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self.take(name, *shape).float()

    def take_all(self) -> dict[str, Tensor]:
        return {name: self.take(name, *stored.shape) for name, stored in self._stored.items()}

    def drop_all(self, prefix: str) -> None:
        """There may be other tensors."""

    def __contains__(self, name: str) -> bool:
        return name in self._stored
