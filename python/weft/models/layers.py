"""The layers of a decoder, on rows of tokens [N, H] and the memory of one layer.

A layer has a mixer, such as attention, and an MLP or a mixture of experts. Each of these parts reads the residual
stream and adds to it. Models differ in switches of `ModelConfig`.

The query, key and value projections are fused into one matrix, gate and up into another. Rows of the query and key
projections are reordered at load, so that rotary embedding rotates adjacent pairs. Keys in the cache have that order,
too. It does not change the dot products of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.models.matrices import AnyMatrix, joined
from weft.models.residual import Residual
from weft.models.states import LayerStates
from weft.ops.attention import Heads, KVLayer, Rows, attend
from weft.ops.linear import Linear, Norm
from weft.ops.quantized import Matrix


class LayerViews(NamedTuple):
    """The memory of a layer: its pages and its states. A part that it does not keep is None."""

    kv: KVLayer | None = None
    states: LayerStates | None = None


class Mixer(Protocol):
    """The part of a layer that mixes positions: attention or a recurrence."""

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, rows: Rows, memory: LayerViews
    ) -> None:
        """Add the part's output for the stream normed by `before`, normed by `after`, to the stream."""


class FeedForward(Protocol):
    """The part of a layer that computes each position alone: an MLP or a mixture of experts."""

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, also: Tensor | None = None
    ) -> None:
        """As a `Mixer`'s. `also` receives a copy of the stream."""


class Attention:
    """Grouped-query attention over paged KV, from input [N, input_size] to heads [N, num_heads * head_dim].

    The product `qkv` gives queries, keys and values, with `gated_attention` also gates. The product `output` follows
    attention. `rotary` is a table from `Rope.table`, or None for layers without rotation.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        prefix: str,
        rotary: Tensor | None,
        input_size: int | None = None,
    ) -> None:
        heads, dim = config.num_heads, config.head_dim
        self.width = (heads + 2 * config.num_kv_heads) * dim
        num_pairs = 0 if rotary is None or config.adjacent_pairs else rotary.shape[1]
        inputs = input_size or config.hidden_size
        parts = _projections(config, weights.take_matrix, prefix, "weight", (inputs,), num_pairs)
        biases = None
        if config.attention_bias:
            taken = _projections(config, weights.take, prefix, "bias", (), num_pairs)
            biases = [bias.flatten() for bias in taken]
        self.qkv = Linear(parts, biases)
        self.output = Linear(
            weights.take_matrix(f"{prefix}o_proj.weight", config.hidden_size, heads * dim),
            weights.take(f"{prefix}o_proj.bias", config.hidden_size) if config.output_bias else None,
            scale=config.residual_scale,
        )
        self.heads = Heads(
            heads,
            rotary,
            dim**-0.5 if config.attention_scale is None else config.attention_scale,
            _head_norms(config, weights, prefix, num_pairs) if config.qk_norm else None,
            config.rms_norm_eps,
            softcap=config.attention_softcap,
            sink_logits=weights.take(f"{prefix}sinks", heads).float() if config.sink_logits else None,
        )

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, rows: Rows, memory: LayerViews
    ) -> None:
        assert memory.kv is not None
        stream.add(self.output, self.attend(stream.read(self.qkv, before), rows, memory.kv), after)

    def attend(self, qkv: Tensor, rows: Rows, kv: KVLayer) -> Tensor:
        """The heads' outputs for the results of the product `qkv`."""
        gate = qkv[:, self.width :] if qkv.shape[1] > self.width else None
        return attend(qkv[:, : self.width], kv, rows, self.heads, gate)


class MLP:
    """An MLP of hidden size `inner`, by default `config.intermediate_size`, with gates unless the config has none."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, prefix: str, inner: int | None = None
    ) -> None:
        hidden, inner = config.hidden_size, inner or config.intermediate_size
        names = ["gate_proj", "up_proj"] if config.gated_mlp else ["up_proj"]
        if config.fused_gate_up and config.gated_mlp:
            both = weights.take_matrix(f"{prefix}gate_up_proj.weight", 2 * inner, hidden)
            halves: list[Matrix] = [*both.chunk(2)]
        else:
            halves = [weights.take_matrix(f"{prefix}{name}.weight", inner, hidden) for name in names]
        biases = [weights.take(f"{prefix}{name}.bias", inner) for name in names] if config.mlp_bias else None
        self.up = Linear(halves, biases, activation=config.activation, gated=config.gated_mlp)
        bias = weights.take(f"{prefix}down_proj.bias", hidden) if config.mlp_bias else None
        self.output = Linear(
            weights.take_matrix(f"{prefix}down_proj.weight", hidden, inner),
            bias,
            scale=config.residual_scale,
        )

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, also: Tensor | None = None
    ) -> None:
        stream.add(self.output, stream.read(self.up, before), after, also)


class DecoderLayer:
    """A mixer and an MLP or a mixture, each with the norms before and after it that `config.norm_names` names. A
    Llama layer takes five operations."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, prefix: str, mixer: Mixer, mlp: FeedForward
    ) -> None:
        self.mixer = mixer
        self.mlp = mlp
        norm, names = norms(config, weights, prefix), config.norm_names
        self.norms = [norm(name) if name else None for name in names]

    def add_to_(self, stream: Residual, rows: Rows, memory: LayerViews, also: Tensor | None = None) -> None:
        """Add this layer's output to the residual stream. `also` receives a copy of the result."""
        before_mixer, after_mixer, before_mlp, after_mlp = self.norms
        self.mixer.add_to_(stream, before_mixer, after_mixer, rows, memory)
        self.mlp.add_to_(stream, before_mlp, after_mlp, also)


def norms(config: ModelConfig, weights: WeightSource, prefix: str) -> Callable[[str], Norm]:
    """Return a function that loads a norm over the hidden size by its name after `prefix`."""
    return lambda name: Norm(
        norm_weight(config, weights, f"{prefix}{name}.weight", config.hidden_size), config.rms_norm_eps
    )


def norm_weight(config: ModelConfig, weights: WeightSource, name: str, size: int) -> Tensor:
    """The weight [size] of a norm. If the config adds a number to norms' weights, the sum is float32, because a sum in
    16 bits would round it."""
    weight = weights.take(name, size)
    if not config.norm_offset:
        return weight
    if weight.is_meta:  # torch would import its compiler to add
        return weight.new_empty(size, dtype=torch.float32)
    return weight.float() + config.norm_offset


def pairs(heads: AnyMatrix, num_pairs: int) -> AnyMatrix:
    """Reorder the elements of heads [H, D, ...], so that adjacent ones are rotated: (i, i + R) of a head become (2i,
    2i + 1) for its R = `num_pairs` rotated pairs. The result has the same number of rows, in two or three leading
    dimensions."""
    size = heads.shape[1]
    if 2 * num_pairs == size:  # a view: nothing is copied
        view: AnyMatrix = heads.unflatten(1, (2, num_pairs)).transpose(1, 2)
        return view
    if num_pairs == 0 or heads.is_meta:  # torch would import its compiler to concatenate
        return heads
    rotated: AnyMatrix = heads[:, : 2 * num_pairs].unflatten(1, (2, num_pairs)).transpose(1, 2).flatten(1, 2)
    return joined(rotated, heads[:, 2 * num_pairs :], 1)


def _projections(
    config: ModelConfig,
    take: Callable[..., AnyMatrix],
    prefix: str,
    kind: str,
    shape: tuple[int, ...],
    num_pairs: int,
) -> list[AnyMatrix]:
    """The weights or biases of queries, keys, values and gates."""
    dim, heads, kv_heads = config.head_dim, config.num_heads, config.num_kv_heads
    gates: list[AnyMatrix] = []
    if config.fused_qkv:
        fused = take(f"{prefix}qkv_proj.{kind}", (heads + 2 * kv_heads) * dim, *shape)
        q, k, v = fused.split([heads * dim, kv_heads * dim, kv_heads * dim])
    else:
        counts = heads * (2 if config.gated_attention else 1), kv_heads, kv_heads
        q, k, v = (
            take(f"{prefix}{name}.{kind}", count * dim, *shape)
            for name, count in zip(("q_proj", "k_proj", "v_proj"), counts, strict=True)
        )
    q, k = q.view(heads, -1, *shape), k.view(kv_heads, -1, *shape)
    if config.gated_attention:  # each head's query, then its gate
        q, gate = q.split(dim, 1)
        gates = [gate]
    return [pairs(q, num_pairs), pairs(k, num_pairs), v, *gates]


def _head_norms(
    config: ModelConfig, weights: WeightSource, prefix: str, num_pairs: int
) -> tuple[Tensor, Tensor]:
    """The weights of the query norm and of the key norm."""
    dim, spans = config.head_dim, config.qk_norm_spans_heads
    sizes = (config.num_heads * dim, config.num_kv_heads * dim) if spans else (dim, dim)
    q, k = (
        pairs(norm_weight(config, weights, f"{prefix}{name}.weight", size).view(-1, dim), num_pairs).flatten()
        for name, size in zip(("q_norm", "k_norm"), sizes, strict=True)
    )
    return q, k
