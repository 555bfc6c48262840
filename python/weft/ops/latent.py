"""Multi-head latent attention in its absorbed form: the products of each head before and after `weft.ops.attention`.

Letters: N tokens, H heads, Q size of a compressed query, D and P elements of a head that are not rotated and that are,
R size of the latent, V size of a head's result.

    keys:     [k_up[h] @ latent | rotated]          scores:  q · key = (k_up[h].T @ q[:D]) · latent + q[D:] · rotated
    values:   v_up[h] @ latent                      result:  v_up[h] @ (sum of weights times latents)

So all heads share one key [latent | rotated] of R + P elements, whose first R elements are the value, too. That key is
all that is stored. On the CPU, activations are float32 and weights keep their dtype, as in `weft.ops.linear`. A row's
result depends on that row alone, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.ops.formats import DENSE_FORMATS, Activations
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.linear import FEW_ROWS, Linear, Norm, multiply
from weft.ops.packing import activations_of, format_of, pack_each
from weft.ops.quantized import Matrix


class LatentQueries:
    """The queries and the key of each token, for `attend` with `Heads.first_rotated` R and values in keys.

    q_up: [H * (D + P), Q], whole or in parts, one below the other; None if queries are not compressed.
    k_up: [H, D, R], any view.
    q_norm, kv_norm: norms of the compressed query [Q] and of the latent [R]; `q_norm` may be None.
    num_rotated: P.
    activations: as in `Linear`.
    """

    def __init__(
        self,
        q_up: Matrix | Sequence[Matrix] | None,
        k_up: Tensor,
        q_norm: Norm | None,
        kv_norm: Norm,
        num_rotated: int,
        *,
        activations: Activations | None = None,
    ) -> None:
        self.num_heads, size, self.latent_size = k_up.shape
        self.num_rotated, self.q_norm, self.kv_norm = num_rotated, q_norm, kv_norm
        self.query_size = self.num_heads * (size + num_rotated)
        self.q_up = None if q_up is None else Linear(q_up, activations=activations)
        require(
            self.q_up is None or self.q_up.num_outputs == self.query_size,
            f"{self.num_heads} heads of {size} + {num_rotated} elements need as many outputs of q_up",
        )
        require(self.q_up is not None or q_norm is None, "only compressed queries have a norm")
        self.k_up = _stored(k_up.transpose(1, 2) if k_up.is_cpu else k_up, activations)

    def __call__(self, x: Tensor, live: Tensor | None = None) -> Tensor:
        """Queries and key [N, (H + 1) * (R + P)] for `x` [N, Q + R + P]: compressed query, latent, rotated part of the
        key. If queries are not compressed, x has H * (D + P) elements instead of the first Q. The parts that `attend`
        rotates are not rotated yet. Rows of `x` may lie apart. live: int64 [1], the number of live rows."""
        key_size, q_up = self.latent_size + self.num_rotated, self.q_up
        size, given = self.query_size if q_up is None else q_up.num_inputs, x.shape[1] - key_size
        require(given == size, f"queries have {size} elements, not {given}")
        out = x.new_empty(x.shape[0], (self.num_heads + 1) * key_size)
        q_weight, q_eps = (None, 0.0) if self.q_norm is None else (self.q_norm.weight, self.q_norm.eps)
        _LATENT_QUERIES(
            x, *(_NONE if q_up is None else q_up.packed), q_weight, q_eps, self.k_up.memory, self.k_up.activations,
            self.kv_norm.weight, self.kv_norm.eps, self.query_size // self.num_heads - self.num_rotated,
            self.num_rotated, out, live,
        )  # fmt: skip
        return out


class LatentValues:
    """The results of heads from attention to latents. v_up: [H, V, R], any view. activations: as in `Linear`."""

    def __init__(self, v_up: Tensor, *, activations: Activations | None = None) -> None:
        self.num_heads, self.value_size, self.latent_size = v_up.shape
        self.v_up = _stored(v_up, activations)

    def __call__(self, attended: Tensor, live: Tensor | None = None) -> Tensor:
        """The results [N, H * V] of `attended` [N, H * R], whose rows may lie apart. live: int64 [1], the number of
        live rows."""
        inputs = self.num_heads * self.latent_size
        require(attended.shape[1] == inputs, f"rows have {inputs} elements, not {attended.shape[1]}")
        out = attended.new_empty(attended.shape[0], self.num_heads * self.value_size)
        _LATENT_VALUES(attended, self.v_up.memory, self.v_up.activations, out, live)
        return out


_NONE = None, (), None
"""The arguments of the operation for queries that are not compressed."""


class HeadMatrices(NamedTuple):
    """The packed matrices of heads, and how products round their input rows. On CUDA `memory` is [H, out, in]."""

    memory: Tensor
    activations: Activations


def _stored(weight: Tensor, wanted: Activations | None) -> HeadMatrices:
    """Pack the matrices [H, out, in] of heads."""
    activations = activations_of(format_of(weight), weight.device, wanted)
    if not weight.is_cpu:
        return HeadMatrices(weight.contiguous(), activations)
    return HeadMatrices(pack_each(weight, activations is not Activations.FLOAT32), activations)


def _latent_queries_cpu(
    x: Tensor,
    q_up: Tensor | None,
    q_parts: Sequence[int],
    q_orders: Tensor | None,
    q_norm: Tensor | None,
    q_eps: float,
    k_up: Tensor,
    k_activations: int,
    kv_norm: Tensor,
    kv_eps: float,
    size: int,
    num_rotated: int,
    out: Tensor,
    live: Tensor | None = None,
) -> None:
    _check(x, torch.float32)
    num_heads = k_up.shape[0]
    latent_size = out.shape[1] // (num_heads + 1) - num_rotated
    num_inputs = x.shape[1] - latent_size - num_rotated
    kernel = _core.latent_queries_cpu(
        x.data_ptr(), x[:, num_inputs:].data_ptr(), address(q_up), q_parts, address(q_orders), address(q_norm),
        num_inputs, q_eps, k_up.data_ptr(), kv_norm.data_ptr(), DENSE_FORMATS[k_up.dtype], k_activations,
        out.data_ptr(), x.shape[0], num_heads, size, latent_size, num_rotated, x.stride(0), out.stride(0), kv_eps,
        torch.get_num_threads(), address(live),
    )  # fmt: skip
    run_kernel("latent_queries", kernel)


def _latent_values_cpu(
    attended: Tensor, v_up: Tensor, activations: int, out: Tensor, live: Tensor | None = None
) -> None:
    _check(attended, torch.float32)
    num_heads = v_up.shape[0]
    kernel = _core.multiply_heads_cpu(
        attended.data_ptr(), v_up.data_ptr(), DENSE_FORMATS[v_up.dtype], activations, out.data_ptr(),
        attended.shape[0], num_heads, attended.shape[1] // num_heads, out.shape[1] // num_heads, attended.stride(0),
        out.stride(0), torch.get_num_threads(), address(live),
    )  # fmt: skip
    run_kernel("latent_values", kernel)


def _check(x: Tensor, dtype: torch.dtype) -> None:
    require(x.dtype is dtype, f"activations are {dtype}, not {x.dtype}")
    require(x.stride(1) == 1, "the last dimension must be contiguous")


def _latent_queries_cuda(
    x: Tensor,
    q_up: Tensor | None,
    q_parts: Sequence[int],
    q_orders: Tensor | None,
    q_norm: Tensor | None,
    q_eps: float,
    k_up: Tensor,
    k_activations: int,
    kv_norm: Tensor,
    kv_eps: float,
    size: int,
    num_rotated: int,
    out: Tensor,
    live: Tensor | None = None,
) -> None:
    _check(x, k_up.dtype)
    kernels = triton_kernels("latent_triton")
    split = x.shape[1] - k_up.shape[2] - num_rotated
    queries, latent = x[:, :split], x[:, split:]
    with device_of(x):
        if q_up is not None and not q_parts and x.shape[0] <= FEW_ROWS:
            kernels.up_queries(
                queries, latent, q_up, q_norm, q_eps, k_up, kv_norm, kv_eps, num_rotated, out, live
            )
            return
        if q_up is not None:
            norm, count = None if q_norm is None else Norm(q_norm, q_eps), len(k_up) * (size + num_rotated)
            queries = multiply(queries, q_up, q_parts, q_orders, count, norm, live)
        kernels.queries(queries, latent, k_up, kv_norm, kv_eps, num_rotated, out, live)


def _latent_values_cuda(
    attended: Tensor, v_up: Tensor, activations: int, out: Tensor, live: Tensor | None = None
) -> None:
    _check(attended, v_up.dtype)
    with device_of(attended):
        triton_kernels("latent_triton").values(attended, v_up, out, live)


_LATENT_QUERIES = register(
    "latent_queries(Tensor x, Tensor? q_up, int[] q_parts, Tensor? q_orders, Tensor? q_norm, float q_eps, Tensor k_up,"
    " int k_activations, Tensor kv_norm, float kv_eps, int size, int num_rotated, Tensor(a!) out,"
    " Tensor? live=None) -> ()",
    cpu=_latent_queries_cpu,
    cuda=_latent_queries_cuda,
)
_LATENT_VALUES = register(
    "latent_values(Tensor attended, Tensor v_up, int activations, Tensor(a!) out, Tensor? live=None) -> ()",
    cpu=_latent_values_cpu,
    cuda=_latent_values_cuda,
)
