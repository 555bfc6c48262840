"""SwiGLU's product: silu(gate) * up of a fused projection, one kernel on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from weft import _core
from weft.ops.lazy_triton import triton_kernels
from weft.ops.library import device_of, register


def silu_mul(gate_up: Tensor) -> Tensor:
    """`gate_up` [N, 2 I], gate before up, contiguous: silu(gate) * up [N, I] in the same dtype."""
    out: Tensor = _SILU_MUL(gate_up)
    return out


def _silu_mul_cpu(gate_up: Tensor) -> Tensor:
    rows, width = gate_up.shape
    inner = width // 2
    if gate_up.dtype is torch.float32:
        out = gate_up.new_empty(rows, inner)
        _core.silu_mul_cpu(gate_up.data_ptr(), out.data_ptr(), rows, inner)
        return out
    return F.silu(gate_up.narrow(1, 0, inner)).mul_(gate_up.narrow(1, inner, inner))


def _silu_mul_cuda(gate_up: Tensor) -> Tensor:
    with device_of(gate_up):
        out: Tensor = triton_kernels("silu_mul_triton").silu_mul(gate_up)
    return out


def _silu_mul_fake(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


_SILU_MUL = register(
    "silu_mul(Tensor gate_up) -> Tensor", cpu=_silu_mul_cpu, cuda=_silu_mul_cuda, fake=_silu_mul_fake
)
