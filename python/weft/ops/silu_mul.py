"""SwiGLU's product: silu(gate) * up of a fused projection, one kernel on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LIBRARY = torch.library.Library("weft", "FRAGMENT")
_LIBRARY.define("silu_mul(Tensor gate_up) -> Tensor")


def silu_mul(gate_up: Tensor) -> Tensor:
    """`gate_up` [N, 2 I], gate before up, contiguous: silu(gate) * up [N, I] in the same dtype."""
    out: Tensor = torch.ops.weft.silu_mul.default(gate_up)
    return out


def _silu_mul_cpu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def _silu_mul_cuda(gate_up: Tensor) -> Tensor:
    from weft.ops import silu_mul_triton

    return silu_mul_triton.silu_mul(gate_up)


def _silu_mul_fake(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


_LIBRARY.impl("silu_mul", _silu_mul_cpu, "CPU")
_LIBRARY.impl("silu_mul", _silu_mul_cuda, "CUDA")
torch.library.register_fake("weft::silu_mul", _silu_mul_fake, lib=_LIBRARY)
