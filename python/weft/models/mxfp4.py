"""The tensors of a checkpoint that are stored in MXFP4 (`weft.ops.mxfp4`), as GPT-OSS is published."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.models.matrices import Matrices
from weft.ops.mxfp4 import widened

BLOCKS, SCALES = "_blocks", "_scales"
"""The ends of the names of a tensor's two parts."""


@dataclass(frozen=True)
class Mxfp4Tensor:
    """A tensor [E, out, in]: uint8 blocks [E, out, in / 32, 16] and scales [E, out, in / 32].

    `dtype` and `device` are those of the matrices that it gives. On the device "meta" nothing has contents."""

    blocks: Tensor
    scales: Tensor
    dtype: torch.dtype
    device: torch.device

    def matrices(self, rows: slice = slice(None)) -> Matrices:
        """The matrices, or some rows of each. A matrix is converted when it is read."""

        def read(index: int) -> Tensor:
            return widened(self.blocks[index, rows], self.scales[index, rows]).to(self.device, self.dtype)

        return Matrices(len(self.blocks), read)
