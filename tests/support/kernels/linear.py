"""Cases of a decoder's matrix products, with their results in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.activation import SWIGLU, Activation, Epilogue, Function
from weft.ops.linear import Added, Linear, Norm

EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """A weight [outputs, inputs], and the operations that are fused before and after the product."""

    outputs: int
    inputs: int
    rows: int = 5
    bias: bool = False
    norm: bool = False
    added: bool = False
    wide_norms: bool = False
    """The weights of norms are float32."""
    residual: bool = False
    activation: Activation | None = None
    gated: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    wide_out: bool = False
    """The results are float32."""
    dtype: str = "float32"

    def __str__(self) -> str:
        flags = [
            name
            for name in ("bias", "norm", "added", "wide_norms", "residual", "gated", "wide_out")
            if getattr(self, name)
        ]
        if self.activation is not None:
            flags.append(self.activation.function.name.lower())
        flags += [name for name, off in (("scale", 1), ("softcap", 0)) if getattr(self, name) != off]
        return "-".join(map(str, (self.rows, self.outputs, self.inputs, *flags, self.dtype)))

    @property
    def results(self) -> int:
        """The number of results of a row."""
        return self.outputs // (2 if self.gated else 1)

    @property
    def epilogue(self) -> Epilogue:
        return Epilogue.of(self.activation, self.gated, self.scale, self.softcap)

    @property
    def out_dtype(self) -> torch.dtype | None:
        return torch.float32 if self.wide_out else None

    @property
    def tolerance(self) -> float:
        """The allowed error, relative to the largest value."""
        if self.wide_out:
            return 1e-5
        return {"float32": 5e-6, "float16": 3e-3, "bfloat16": 2e-2}[self.dtype]


CLAMPED = Activation(Function.SILU, slope=1.7, limit=0.8, shift=1.0)
CASES = (
    Case(96, 64, rows=1),
    Case(200, 130, rows=16, bias=True),  # neither size is a multiple of a block
    Case(64, 260, rows=3, norm=True),
    Case(130, 1040, norm=True, bias=True, residual=True),
    Case(144, 96, activation=SWIGLU, gated=True, norm=True),
    Case(202, 515, rows=7, activation=SWIGLU, gated=True, bias=True, norm=True),
    Case(66, 70, activation=SWIGLU, gated=True, bias=True),
    Case(1, 3, rows=2),
    Case(128, 2048, residual=True, rows=9),
    Case(96, 520, norm=True, residual=True, dtype="float16"),
    Case(320, 512, norm=True, activation=SWIGLU, gated=True, dtype="float16", rows=16),
    Case(130, 260, norm=True, bias=True, activation=Activation(Function.RELU_SQUARED)),
    Case(70, 130, activation=Activation(Function.GELU), residual=True, scale=0.3),
    Case(202, 300, rows=7, bias=True, activation=Activation(Function.GELU_TANH), gated=True, residual=True),
    Case(130, 70, norm=True, bias=True, activation=CLAMPED, gated=True, scale=0.7),
    Case(66, 64, activation=Activation(Function.NONE), gated=True),
    Case(64, 96, activation=Activation(Function.RELU), bias=True),
    Case(130, 1040, norm=True, bias=True, residual=True, scale=0.22),
    Case(200, 96, rows=16, norm=True, scale=3.0, softcap=1.5),
    Case(96, 130, bias=True, residual=True, softcap=2.0),
    Case(96, 260, norm=True, residual=True, scale=0.22, softcap=2.0, dtype="float16"),
    Case(130, 260, norm=True, added=True),
    Case(96, 1040, rows=16, added=True, residual=True),
    Case(202, 515, rows=7, norm=True, added=True, bias=True, activation=SWIGLU, gated=True),
    Case(96, 520, norm=True, added=True, wide_norms=True, dtype="float16"),
    Case(96, 512, norm=True, residual=True, wide_norms=True, dtype="float16"),
    Case(70, 520, rows=3, bias=True, wide_out=True, dtype="float16"),
)


class Inputs:
    """Random values of a case. The row strides of `x` and `residual` are larger than their rows."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(7)
        dtype = getattr(torch, case.dtype)

        def random(*shape: int, scale: float = 1.0, mean: float = 0.0, dtype: torch.dtype = dtype) -> Tensor:
            return (torch.randn(*shape, generator=generator) * scale + mean).to(device, dtype)

        def norm() -> Norm:
            kind = torch.float32 if case.wide_norms else dtype
            return Norm(random(case.inputs, scale=0.2, mean=1.0, dtype=kind), EPS)

        self.case = case
        self.x = random(case.rows, case.inputs + 8)[:, : case.inputs]
        self.weight = random(case.outputs, case.inputs, scale=case.inputs**-0.5)
        self.bias = random(case.outputs) if case.bias else None
        self.norm = norm() if case.norm else None
        self.residual = random(case.rows, case.results + 8)[:, : case.results] if case.residual else None
        self.added = None
        if case.added:
            rows = random(case.rows, case.inputs + 16)[:, 8:-8]
            self.added = Added(rows, norm(), self.x.new_zeros(case.rows, case.inputs + 8)[:, : case.inputs])

    def linear(self) -> Linear:
        """Return the device's operation."""
        case = self.case
        return Linear(
            self.weight,
            self.bias,
            activation=case.activation,
            gated=case.gated,
            scale=case.scale,
            softcap=case.softcap,
            out_dtype=case.out_dtype,
        )

    def wanted_total(self) -> Tensor:
        """Return the input of the product before its norm, in float64."""
        x = self.x.double()
        if self.added is None:
            return x
        return x + F.rms_norm(self.added.rows.double(), x.shape[1:], self.added.norm.weight.double(), EPS)

    def wanted(self) -> Tensor:
        """Return the result in float64."""
        x = self.wanted_total()
        if self.norm is not None:
            x = F.rms_norm(x, x.shape[1:], self.norm.weight.double(), EPS)
        y = F.linear(x, self.weight.double(), None if self.bias is None else self.bias.double())
        case = self.case
        if case.activation is not None:
            y = case.activation(*(y.chunk(2, 1) if case.gated else (y,)))
        y = y * case.scale
        if case.softcap:
            y = case.softcap * torch.tanh(y / case.softcap)
        return y if self.residual is None else y + self.residual.double()

    def run(self, linear: Callable[..., Tensor] | None = None) -> Tensor:
        """Return the result of the device's operation, or of a function with the arguments of `Linear.__call__`."""
        linear = linear or self.linear()
        added = {} if self.added is None else {"added": self.added}
        return linear(self.x, self.norm, residual=self.residual, **added)

    def error(self, got: Tensor) -> float:
        """Return the largest error, relative to the largest value."""
        wanted = self.wanted()
        return float((got.double() - wanted).abs().max() / wanted.abs().max())
