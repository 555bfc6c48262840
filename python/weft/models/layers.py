"""The layers of a Llama-like decoder, on rows of tokens [N, H] and one layer's paged KV.

The query, key and value projections are fused into one matrix, gate and up into another. Rows of the query and key
projections are reordered at load, so that rotary embedding rotates adjacent pairs. Keys in the cache have that order,
too. It does not change the dot products of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.ops.activation import SWIGLU
from weft.ops.attention import Heads, KVLayer, Rows, attend
from weft.ops.linear import Linear, Norm


class Attention:
    """Grouped-query attention over paged KV, from input [N, input_size] to heads [N, num_heads * head_dim].

    The caller applies the projection `output`, which also adds the residual. `rotary` is a table from `Rope.table`.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        prefix: str,
        rotary: Tensor,
        input_size: int | None = None,
    ) -> None:
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        inputs = input_size or config.hidden_size
        parts = (("q_proj", heads, True), ("k_proj", kv_heads, True), ("v_proj", kv_heads, False))

        def taken(take: Callable[..., Tensor], kind: str, *shape: int) -> list[Tensor]:
            each = ((take(f"{prefix}{n}.{kind}", h * dim, *shape), turned) for n, h, turned in parts)
            return [pairs(w, dim) if turned else w for w, turned in each]

        bias = [part.flatten() for part in taken(weights.take, "bias")] if config.attention_bias else None
        self.qkv = Linear(taken(weights.take_matrix, "weight", inputs), bias)
        output_bias = weights.take(f"{prefix}o_proj.bias", config.hidden_size) if config.output_bias else None
        self.output = Linear(
            weights.take_matrix(f"{prefix}o_proj.weight", config.hidden_size, heads * dim), output_bias
        )
        norms = None
        if config.qk_norm:
            names = ("q_norm", "k_norm")
            q, k = (pairs(weights.take(f"{prefix}{name}.weight", dim), dim).flatten() for name in names)
            norms = q, k
        self.heads = Heads(heads, rotary, dim**-0.5, norms, config.rms_norm_eps)

    def __call__(self, x: Tensor, norm: Norm | None, rows: Rows, kv: KVLayer) -> Tensor:
        return attend(self.qkv(x, norm, live=rows.live), kv, rows, self.heads)


class MLP:
    """SwiGLU without the down projection, from [N, H] to [N, I]. The caller applies the projection `output`."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        halves = ("gate_proj", "up_proj")
        gate_up = [weights.take_matrix(f"{prefix}{n}.weight", inner, hidden) for n in halves]
        biases = [weights.take(f"{prefix}{n}.bias", inner) for n in halves] if config.mlp_bias else None
        self.gate_up = Linear(gate_up, biases, activation=SWIGLU, gated=True)
        bias = weights.take(f"{prefix}down_proj.bias", hidden) if config.mlp_bias else None
        self.output = Linear(weights.take_matrix(f"{prefix}down_proj.weight", hidden, inner), bias)

    def __call__(self, x: Tensor, norm: Norm, live: Tensor | None = None) -> Tensor:
        return self.gate_up(x, norm, live=live)


class DecoderLayer:
    """One Llama layer: attention and MLP, each with a norm before and a residual addition after, in five operations."""

    def __init__(self, config: ModelConfig, weights: WeightSource, prefix: str, rotary: Tensor) -> None:
        self.attention = Attention(config, weights, f"{prefix}self_attn.", rotary)
        self.mlp = MLP(config, weights, f"{prefix}mlp.")
        norm = norms(config, weights, prefix)
        self.input_norm = norm("input_layernorm")
        self.post_attention_norm = norm("post_attention_layernorm")

    def add_to_(self, x: Tensor, rows: Rows, kv: KVLayer, also: Tensor | None = None) -> None:
        """Add this layer's output to the residual stream `x` [N, H] in place, in the live rows of `rows`. `also`
        receives a copy of the result."""
        heads, live = self.attention(x, self.input_norm, rows, kv), rows.live
        self.attention.output(heads, residual=x, out=x, live=live)
        inner = self.mlp(x, self.post_attention_norm, live)
        self.mlp.output(inner, residual=x, out=x, also=also, live=live)


def norms(config: ModelConfig, weights: WeightSource, prefix: str) -> Callable[[str], Norm]:
    """Return a function that loads a norm over the hidden size by its name after `prefix`."""
    return lambda name: Norm(weights.take(f"{prefix}{name}.weight", config.hidden_size), config.rms_norm_eps)


def pairs(weight: Tensor, head_dim: int) -> Tensor:
    """View the rows [H * D, ...] of heads as rotated pairs [H, D / 2, 2, ...]: flattened, (i, i + D/2) of a head are
    (2i, 2i + 1)."""
    return weight.view(-1, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2)
