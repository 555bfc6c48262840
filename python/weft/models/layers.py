"""The parts of a Llama-like decoder, on rows of tokens [N, H] and one layer's paged cache.

Query, key and value projections are one matrix, gate and up another. Query and key rows are reordered at
load, so that rotary embedding turns neighbouring pairs: keys in the cache are in that order, and products of
the two do not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.models.base import KVIndex, PagedKV, WeightSource
from weft.models.config import ModelConfig
from weft.ops.attention import kv_plan, paged_attention, rotate_write_
from weft.ops.few_rows import FEW_ROWS, few_rows_linear, few_rows_linear_add_, panels_of
from weft.ops.rms_norm import rms_norm
from weft.ops.silu_mul import silu_mul

_PACK_ELEMENTS = 1 << 20


class Linear:
    """x @ weight.T (+ bias) on [N, in], for a weight [out, in].

    On the CPU in float32 the weight is kept in the layouts that multiply fastest with it: if small, panels for
    few rows and transposed for many; if large, oneDNN's own.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.weight = weight.t()
        self._packed: Tensor | None = None
        self._panels: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            if weight.numel() >= _PACK_ELEMENTS and torch.backends.mkldnn.is_available():
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
                self.weight = weight.new_empty(0)
            else:
                self.weight = self.weight.contiguous()
                self._panels = panels_of(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self._panels is not None and x.shape[0] <= FEW_ROWS:
            product = few_rows_linear(x, self._panels, self.weight.shape[1])
            return product if self.bias is None else product.add_(self.bias)
        if self._packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return out
        if self.bias is not None:
            return torch.addmm(self.bias, x, self.weight)
        return torch.mm(x, self.weight)

    def add_to_(self, residual: Tensor, x: Tensor) -> None:
        """residual += self(x), in place."""
        if self._packed is not None:
            residual.add_(self(x))
            return
        if self._panels is not None and x.shape[0] <= FEW_ROWS:
            few_rows_linear_add_(residual, x, self._panels)
            if self.bias is not None:
                residual.add_(self.bias)
            return
        residual.addmm_(x, self.weight)
        if self.bias is not None:
            residual.add_(self.bias)


class RMSNorm:
    """x / sqrt(mean(x²) + eps) * weight over rows [N, H]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class Place:
    """Where the tokens of one forward are: their rows, their slots in a cache and their rotation."""

    index: KVIndex
    slots: Tensor
    rotary: Tensor

    @classmethod
    def of(cls, index: KVIndex, kv: PagedKV, table: Tensor) -> Place:
        """`table` is `Rope.table`'s, on the device."""
        slots, rotary = kv_plan(index.page_table, index.positions, table, kv.page_size)
        return cls(index, slots, rotary)


class Attention:
    """Grouped-query attention over paged KV, from input [N, input_size] to heads [N, num_heads * head_dim].

    The output projection is `output`, left to the caller, which adds it to the residual.
    """

    def __init__(
        self, config: ModelConfig, weights: WeightSource, prefix: str, input_size: int | None = None
    ) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.num_heads, self.head_dim = heads, dim
        self.scale = dim**-0.5
        self.eps = config.rms_norm_eps
        inputs = input_size or config.hidden_size
        parts = (("q_proj", heads, True), ("k_proj", kv_heads, True), ("v_proj", kv_heads, False))

        def fused(kind: str, *shape: int) -> Tensor:
            taken = ((weights.take(f"{prefix}{n}.{kind}", h * dim, *shape), turned) for n, h, turned in parts)
            return torch.cat([pair_order(w, dim) if turned else w for w, turned in taken])

        self.qkv = Linear(fused("weight", inputs), fused("bias") if config.attention_bias else None)
        bias = weights.take(f"{prefix}o_proj.bias", config.hidden_size) if config.output_bias else None
        self.output = Linear(weights.take(f"{prefix}o_proj.weight", config.hidden_size, heads * dim), bias)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = pair_order(weights.take(f"{prefix}q_norm.weight", dim), dim)
            self.k_norm = pair_order(weights.take(f"{prefix}k_norm.weight", dim), dim)

    def __call__(self, x: Tensor, place: Place, cache: Tensor) -> Tensor:
        index = place.index
        qkv = self.qkv(x)
        rotate_write_(
            qkv, cache, place.slots, place.rotary, self.num_heads, self.q_norm, self.k_norm, self.eps
        )
        q = qkv.narrow(1, 0, self.num_heads * self.head_dim).view(*index.positions.shape, -1, self.head_dim)
        return paged_attention(q, cache, index.page_table, index.positions, self.scale).view(x.shape[0], -1)


class MLP:
    """SwiGLU up to the hidden width [N, I]; its `output` projection is left to the caller."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size

        def take(name: str, *shape: int) -> Tensor:
            return weights.take(f"{prefix}{name}", *shape)

        gate_up = torch.cat([take(f"{n}.weight", inner, hidden) for n in ("gate_proj", "up_proj")])
        bias = (
            torch.cat([take(f"{n}.bias", inner) for n in ("gate_proj", "up_proj")])
            if config.mlp_bias
            else None
        )
        self.gate_up = Linear(gate_up, bias)
        bias = take("down_proj.bias", hidden) if config.mlp_bias else None
        self.output = Linear(take("down_proj.weight", hidden, inner), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return silu_mul(self.gate_up(x))


class DecoderLayer:
    """One Llama layer."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str) -> None:
        self.attention = Attention(config, weights, f"{prefix}self_attn.")
        self.mlp = MLP(config, weights, f"{prefix}mlp.")
        norm = norms(config, weights, prefix)
        self.input_norm = norm("input_layernorm")
        self.post_attention_norm = norm("post_attention_layernorm")

    def add_to_(self, x: Tensor, place: Place, cache: Tensor) -> None:
        """Advance the residual stream `x` [N, H] by this layer, in place."""
        self.attention.output.add_to_(x, self.attention(self.input_norm(x), place, cache))
        self.mlp.output.add_to_(x, self.mlp(self.post_attention_norm(x)))


def norms(config: ModelConfig, weights: WeightSource, prefix: str) -> Callable[[str], RMSNorm]:
    """Makes the norms of a module over the hidden size by their names."""
    return lambda name: RMSNorm(
        weights.take(f"{prefix}{name}.weight", config.hidden_size), config.rms_norm_eps
    )


def pair_order(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from halves (i, i + D/2) to neighbours (2i, 2i + 1)."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
