"""Gates on rows of activations, between the operations of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.linear import Norm


def gated_norm(x: Tensor, gate: Tensor, norm: Norm, live: Tensor | None = None) -> Tensor:
    """The norm of each head of a recurrence's output `x` [N, Hv, Dv], times silu(gate): [N, Hv * Dv].

    gate: [N, Hv * Dv]. Tokens of both may be apart; the other dimensions are contiguous. norm: its weight is [Dv].
    live: int64 [1], the number of live rows; the others are neither read nor written. The arithmetic is in float32."""
    num_rows, heads, size = x.shape
    out = x.new_empty(num_rows, heads * size)
    require(
        gate.shape == out.shape and norm.weight.shape == (size,),
        f"x {list(x.shape)} needs a gate {list(out.shape)} and a norm of [{size}], not {list(gate.shape)} and "
        f"{list(norm.weight.shape)}",
    )
    require(
        x.stride(2) == gate.stride(1) == 1 and (heads == 1 or x.stride(1) == size),
        "a token must be contiguous",
    )
    _GATED_NORM(x, gate, norm.weight, norm.eps, out, live)
    return out


def _gated_norm_cpu(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    require(
        x.dtype is gate.dtype is weight.dtype is torch.float32,
        f"on the CPU x, gate and the norm's weight are float32, not {x.dtype}, {gate.dtype} and {weight.dtype}",
    )
    kernel = _core.gated_norm_cpu(
        x.data_ptr(), gate.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], x.shape[2],
        x.stride(0), gate.stride(0), eps, torch.get_num_threads(), address(live),
    )  # fmt: skip
    run_kernel("gated_norm", kernel)


def _gated_norm_cuda(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    with device_of(x):
        triton_kernels("gates_triton").gated_norm(x, gate, weight, eps, out, live)


_GATED_NORM = register(
    "gated_norm(Tensor x, Tensor gate, Tensor weight, float eps, Tensor(a!) out, Tensor? live=None) -> ()",
    cpu=_gated_norm_cpu,
    cuda=_gated_norm_cuda,
)
