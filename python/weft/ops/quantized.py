"""Quantised matrices as rows of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.ops.formats import Format

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Quantized:
    """A matrix whose rows are blocks: `data` uint8 [..., row bytes]."""

    data: Tensor
    format: Format
    num_inputs: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.data.shape[:-1], self.num_inputs))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def is_meta(self) -> bool:
        return self.data.is_meta

    def __getitem__(self, rows: Any) -> Quantized:
        return Quantized(self.data[rows], self.format, self.num_inputs)

    def to(self, device: torch.device) -> Quantized:
        return Quantized(self.data.to(device), self.format, self.num_inputs)

    @staticmethod
    def cat(parts: Sequence[Quantized]) -> Quantized:
        first = parts[0]
        return Quantized(torch.cat([part.data for part in parts]), first.format, first.num_inputs)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        size = self.format
        blocks = self.data.contiguous().unflatten(-1, (-1, size.block.bytes))
        if size is Format.MXFP4:
            codes = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), -1)
            table = torch.tensor([*E2M1, *(-value for value in E2M1)])
            scale = blocks[..., :1].view(torch.float8_e8m0fnu).float()
            numbers = table[codes.int()] * scale
        else:
            scale = blocks[..., :4].contiguous().view(torch.float32)
            if size in (Format.INT4_32, Format.INT4_64, Format.INT4_128):
                bytes_ = blocks[..., 8:].unflatten(-1, (-1, 16))
                codes = torch.cat((bytes_ & 15, bytes_ >> 4), -1).flatten(-2)
                numbers = (codes.float() - blocks[..., 4:5].float()) * scale
            elif size is Format.FP8:
                numbers = blocks[..., 4:].contiguous().view(torch.float8_e4m3fn).float() * scale
            else:
                numbers = blocks[..., 4:].contiguous().view(torch.int8).float() * scale
        return numbers.flatten(-2)[..., : self.num_inputs].to(dtype)


Matrix = Tensor | Quantized
