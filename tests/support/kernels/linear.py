"""Cases of a decoder's matrix products, with their results in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.linear import Linear, Norm

EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """A weight [outputs, inputs], and the operations that are fused before and after the product."""

    outputs: int
    inputs: int
    rows: int = 5
    bias: bool = False
    norm: bool = False
    residual: bool = False
    swiglu: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        flags = [name for name in ("bias", "norm", "residual", "swiglu") if getattr(self, name)]
        return "-".join(map(str, (self.rows, self.outputs, self.inputs, *flags, self.dtype)))

    @property
    def tolerance(self) -> float:
        """The allowed error, relative to the largest value."""
        return {"float32": 5e-6, "float16": 3e-3, "bfloat16": 2e-2}[self.dtype]


CASES = (
    Case(96, 64, rows=1),
    Case(200, 130, rows=16, bias=True),  # neither size is a multiple of a block
    Case(64, 260, rows=3, norm=True),
    Case(130, 1040, norm=True, bias=True, residual=True),
    Case(144, 96, swiglu=True, norm=True),
    Case(202, 515, rows=7, swiglu=True, bias=True, norm=True),
    Case(66, 70, swiglu=True, bias=True),
    Case(1, 3, rows=2),
    Case(128, 2048, residual=True, rows=9),
    Case(96, 520, norm=True, residual=True, dtype="float16"),
    Case(320, 512, norm=True, swiglu=True, dtype="float16", rows=16),
)


class Inputs:
    """Random values of a case. The row strides of `x` and `residual` are larger than their rows."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(7)
        dtype = getattr(torch, case.dtype)

        def random(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
            return (torch.randn(*shape, generator=generator) * scale + mean).to(device, dtype)

        self.case = case
        outputs = case.outputs // (2 if case.swiglu else 1)
        self.x = random(case.rows, case.inputs + 8)[:, : case.inputs]
        self.weight = random(case.outputs, case.inputs, scale=case.inputs**-0.5)
        self.bias = random(case.outputs) if case.bias else None
        self.norm = Norm(random(case.inputs, scale=0.2, mean=1.0), EPS) if case.norm else None
        self.residual = random(case.rows, outputs + 8)[:, :outputs] if case.residual else None

    def wanted(self) -> Tensor:
        """Return the result in float64."""
        x = self.x.double()
        if self.norm is not None:
            x = F.rms_norm(x, x.shape[1:], self.norm.weight.double(), EPS)
        y = F.linear(x, self.weight.double(), None if self.bias is None else self.bias.double())
        if self.case.swiglu:
            gate, up = y.chunk(2, 1)
            y = F.silu(gate) * up
        return y if self.residual is None else y + self.residual.double()

    def run(self, linear: Callable[..., Tensor] | None = None) -> Tensor:
        """Return the result of the device's operation, or of a function with the arguments of `Linear.__call__`."""
        linear = linear or Linear(self.weight, self.bias, swiglu=self.case.swiglu)
        return linear(self.x, self.norm, residual=self.residual)

    def error(self, got: Tensor) -> float:
        """Return the largest error, relative to the largest value."""
        wanted = self.wanted()
        return float((got.double() - wanted).abs().max() / wanted.abs().max())
