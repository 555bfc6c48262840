"""Elementwise functions of a decoder, and what a matmul does with its sums."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Function(IntEnum):
    """Elementwise functions. The numbers are the kernels'."""

    NONE = 0
    SILU = 1
    """x * sigmoid(slope * x)"""
    GELU = 2
    GELU_TANH = 3
    """GELU, approximated with tanh."""
    RELU = 4
    RELU_SQUARED = 5


@dataclass(frozen=True)
class Activation:
    """Between the two products of an MLP: function(min(gate, limit)) * (clamp(up, -limit, limit) + shift), or without
    gates function(up). `slope` is that of SiLU; the other functions ignore it."""

    function: Function
    slope: float = 1.0
    limit: float = math.inf
    shift: float = 0.0

    def __call__(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """The same with torch's operations. Without gates, the argument is `up`."""
        if up is None:
            return self._apply(gate)
        if self.limit < math.inf:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self._apply(gate) * (up + self.shift if self.shift else up)

    def _apply(self, x: Tensor) -> Tensor:
        match self.function:
            case Function.NONE:
                return x
            case Function.SILU:
                return F.silu(x) if self.slope == 1 else x * torch.sigmoid(self.slope * x)
            case Function.GELU:
                return F.gelu(x)
            case Function.GELU_TANH:
                return F.gelu(x, approximate="tanh")
            case Function.RELU:
                return F.relu(x)
            case Function.RELU_SQUARED:
                return F.relu(x).square()


SWIGLU = Activation(Function.SILU)
"""With gates: silu(gate) * up."""


class Epilogue(NamedTuple):
    """The steps of a matmul after a sum and its bias, as the kernels' arguments: an `Activation`, with or
    without gates, then the factor `scale`, then softcap * tanh(y / softcap) if `softcap` is above 0."""

    gated: bool = False
    function: int = int(Function.NONE)
    slope: float = 1.0
    limit: float = math.inf
    shift: float = 0.0
    scale: float = 1.0
    softcap: float = 0.0

    @classmethod
    def of(
        cls,
        activation: Activation | None = None,
        gated: bool = False,
        scale: float = 1.0,
        softcap: float = 0.0,
    ) -> Epilogue:
        act = activation or Activation(Function.NONE)
        return cls(gated, int(act.function), act.slope, act.limit, act.shift, scale, softcap)

    @property
    def is_linear(self) -> bool:
        """Whether the sums are only scaled."""
        return not self.gated and self.function == Function.NONE and self.softcap <= 0
