"""Random weights in place of a checkpoint, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log2
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.models.config import ModelConfig
from weft.models.matrices import Matrices
from weft.models.quantized.mxfp4 import Mxfp4
from weft.ops.formats import Format
from weft.ops.quantized import Quantized


class RandomWeights:
    """A `WeightSource` of random weights with a small spread, and ones for norms. The same seed and order of calls give
    the same weights. No name is in it, so a model takes none of the tensors that checkpoints may lack."""

    directory = Path("random weights")

    def __init__(self, config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> None:
        self.dtype, self.weight_dtype = config.dtype, config.weight_dtype or config.dtype
        self._has_mxfp4 = isinstance(config.quantization, Mxfp4) and not config.dequantizes
        self.device = torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return False

    def take_matrix(self, name: str, *shape: int) -> Tensor:
        """The tensor of `take`, converted to the dtype of the weights."""
        return self.take(name, *shape).to(self.weight_dtype)

    def take_float(self, name: str, *shape: int) -> Tensor:
        """The tensor of `take` in float32."""
        return self.take(name, *shape).float()

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor for `name`: ones for a norm's weight, else numbers from a normal distribution, divided by the square
        root of the last dimension (a matrix's input width)."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        tensor = torch.randn(shape, generator=self._generator).mul_(float(shape[-1]) ** -0.5)
        return tensor.to(self.device, self.dtype)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        """The matrix of `take_matrix`."""
        return self.take_matrix(name, *shape)

    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
        """Matrices as `take_matrix` gives them."""
        return Matrices(len(names), lambda index: self.take_matrix(names[index], *shape))

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        """The matrices of a tensor [E, ...] as `take_matrix` gives it, or in MXFP4 if the model is published so."""
        if self._has_mxfp4:
            return Matrices(shape[0], self._mxfp4(*shape).__getitem__)
        return Matrices(shape[0], self.take_matrix(name, *shape).__getitem__)

    def _mxfp4(self, count: int, num_outputs: int, num_inputs: int) -> Quantized:
        """Random numbers in MXFP4. Their spread is at most that of `take`."""
        format, generator = Format.MXFP4, self._generator
        sizes = count, num_outputs, num_inputs // format.block.inputs, format.block.bytes
        rows = torch.randint(256, sizes, generator=generator, device=generator.device, dtype=torch.uint8)
        # The root mean square of the 16 numbers is 2.9.
        rows[..., 0] = 127 + floor(log2(num_inputs**-0.5 / 3))
        return Quantized(rows.flatten(2).to(self.device), format, num_inputs)

    def take_all(self) -> dict[str, Tensor]:
        """Raises `ModelError`: without a checkpoint there is no list of tensors."""
        raise ModelError(
            "random weights have no list of tensors, which a model that transformers runs takes; use a checkpoint"
        )

    def drop_all(self, prefix: str) -> None:
        """Do nothing, because there are no tensors but those that were taken."""
