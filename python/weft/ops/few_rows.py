"""A matrix product of few rows in float32 on the CPU, as a decode step needs: beside it, torch's is made for many.

A row's result depends on that row alone, bit for bit, however many rows there are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from weft import _core
from weft.errors import InterfaceError
from weft.ops.library import register

FEW_ROWS = 128
"""Beyond this torch's product is as fast, on some processors faster."""

PANEL = 64


def panels_of(weight: Tensor) -> Tensor:
    """`weight` [out, in] float32 as [ceil(out / 64), in, 64], zeros after the last output."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, 0, 0, -outputs % PANEL))
    return padded.view(-1, PANEL, inputs).transpose(1, 2).contiguous()


def few_rows_linear(x: Tensor, panels: Tensor, outputs: int) -> Tensor:
    """x @ weight.T, [n, outputs]; x [n, in] with its last dimension contiguous, `panels` of `panels_of(weight)`."""
    out: Tensor = _LINEAR(x, panels, outputs)
    return out


def few_rows_linear_add_(residual: Tensor, x: Tensor, panels: Tensor) -> None:
    """residual += x @ weight.T, in place; residual [n, out] with its last dimension contiguous."""
    _LINEAR_ADD(residual, x, panels)


def _call(x: Tensor, panels: Tensor, out: Tensor, add: bool) -> None:
    _core.few_rows_cpu(
        x.data_ptr(),
        panels.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        x.shape[1],
        out.shape[1],
        x.stride(0),
        out.stride(0),
        add,
        torch.get_num_threads(),
    )


def _linear_cpu(x: Tensor, panels: Tensor, outputs: int) -> Tensor:
    out = x.new_empty(x.shape[0], outputs)
    _call(x, panels, out, False)
    return out


def _linear_add_cpu(residual: Tensor, x: Tensor, panels: Tensor) -> None:
    _call(x, panels, residual, True)


def _no_cuda(*_: object) -> Tensor:
    raise InterfaceError("few_rows_linear is the CPU's; on CUDA use torch.mm")


def _linear_fake(x: Tensor, panels: Tensor, outputs: int) -> Tensor:
    return x.new_empty(x.shape[0], outputs)


_LINEAR = register(
    "few_rows_linear(Tensor x, Tensor panels, int outputs) -> Tensor",
    cpu=_linear_cpu,
    cuda=_no_cuda,
    fake=_linear_fake,
)
_LINEAR_ADD = register(
    "few_rows_linear_add_(Tensor(a!) residual, Tensor x, Tensor panels) -> ()",
    cpu=_linear_add_cpu,
    cuda=_no_cuda,
    fake=lambda residual, x, panels: None,
)
