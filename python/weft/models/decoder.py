"""A decoder of weft's own: an embedding, layers, a norm and an output projection.

An architecture is a subclass. It sets `traits`, and parses its own keys of config.json to other switches of
`ModelConfig`. If it has parts of its own, it overrides `make_mixer` or `make_mlp`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.models.base import Hidden, PagedKV, WeightSource
from weft.models.config import ModelConfig, parse_decoder
from weft.models.fields import Fields
from weft.models.layers import MLP, Attention, DecoderLayer, FeedForward, LayerViews, Mixer, norms
from weft.models.mixture import load_mixture
from weft.models.outputs import mark_output, mark_top_logits, wants_output
from weft.models.residual import Residual
from weft.ops.attention import Rows
from weft.ops.linear import Linear
from weft.ops.rows import copy_rows_, embed, embeddable


class Decoder:
    """A decoder whose layers follow the switches of its config. See `Model` for the methods.

    It marks these outputs: `hidden_states.{i}` [B * T, H], the input of layer i (i = num_layers: the last layer's
    output before the final norm), and `TopKLogits` and `TopKLogitsIndices` [B, T, min(10, V)]."""

    traits: ClassVar[Mapping[str, Any]] = {}
    """Switches of `ModelConfig` that the architecture fixes, and arguments of `parse_decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Values of keys that config.json may lack, if Llama has others."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        embedding = weights.take_in_order(["model.embed_tokens.weight"], *shape)[0]
        self.device = embedding.device
        output = partial(Linear, scale=config.logit_scale, softcap=config.logit_softcap)
        if config.tie_word_embeddings:
            # Before the layers: while the largest matrix is packed, little else is in memory.
            self.head = output(embedding)
        method = config.quantization
        copies = method is not None and method.copies_embeddings
        self.embedding = self.head if config.tie_word_embeddings else embeddable(embedding, copies)
        del embedding  # which may have been converted, too
        rotary = rotary_tables(config, self.device)
        self.layers = [
            self.make_layer(config, weights, f"model.layers.{i}.", i, rotary[i])
            for i in range(config.num_layers)
        ]
        self.norm = norms(config, weights, "model.")("norm")
        if not config.tie_word_embeddings:
            self.head = output(weights.take_matrix("lm_head.weight", *shape))
        self._state_names = [f"hidden_states.{i}" for i in range(config.num_layers + 1)]

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        data = {**cls.defaults, **data}
        return parse_decoder(data, where, **cls.traits, **cls.parse_switches(Fields(data, where)))

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        """Parse switches of `ModelConfig` that no key of Llama has."""
        return {}

    @classmethod
    def make_layer(
        cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int, rotary: Tensor | None
    ) -> DecoderLayer:
        """Load layer `layer`, whose tensors' names begin with `prefix`. `rotary` is its rotary table, None for a layer
        without rotation. Drafters' layers have numbers from `config.num_layers` on."""
        mixer = cls.make_mixer(config, weights, prefix, layer, rotary)
        return DecoderLayer(config, weights, prefix, mixer, cls.make_mlp(config, weights, prefix, layer))

    @classmethod
    def make_mixer(
        cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int, rotary: Tensor | None
    ) -> Mixer:
        """Load the part of a layer that mixes positions. Arguments as in `make_layer`."""
        return Attention(config, weights, f"{prefix}self_attn.", rotary)

    @classmethod
    def make_mlp(cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int) -> FeedForward:
        """Load the MLP or the mixture of a layer. Arguments as in `make_layer`."""
        mixture = config.mixture
        if mixture is not None and layer not in mixture.dense_layers:
            return load_mixture(config, mixture, weights, prefix)
        return MLP(config, weights, f"{prefix}mlp.")

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        live, config = rows.live, self.config
        x = embed(self.embedding, tokens.reshape(-1), config.dtype, live, config.embedding_scale)
        width = x.shape[1]
        if aux_out is None:
            aux_out = x.new_empty(*tokens.shape, len(aux_layers) * width)
        parts = aux_out.flatten(0, -2).split(width, 1) if aux_layers else ()
        places: defaultdict[int, list[Tensor]] = defaultdict(list)
        for number, place in zip(aux_layers, parts, strict=True):
            places[number].append(place)
        for place in places[0]:
            copy_rows_(place, x, live)
        stream = Residual(x, live)
        states = kv.states.layers if kv.states is not None else [None] * len(self.layers)
        for i, (layer, layer_kv, layer_states) in enumerate(zip(self.layers, kv.layers, states, strict=True)):
            if wants_output(self._state_names[i]):
                mark_output(self._state_names[i], stream.settle())
            left = places[i + 1]
            layer.add_to_(stream, rows, LayerViews(layer_kv, layer_states), left[0] if left else None)
            for place in left[1:]:
                copy_rows_(place, stream.x, live)
        x = stream.settle()
        mark_output(self._state_names[-1], x)
        for place in places[len(self.layers) + 1]:
            self.norm(x, place, live)
        return Hidden(x.view(*tokens.shape, width), aux_out)

    def logits(
        self,
        hidden: Tensor,
        out: Tensor | None = None,
        is_normed: bool = False,
        live: Tensor | None = None,
    ) -> Tensor:
        if out is None:
            out = hidden.new_empty(*hidden.shape[:-1], self.config.vocab_size)
        norm = None if is_normed else self.norm
        self.head(hidden.reshape(-1, hidden.shape[-1]), norm, out=out.view(-1, out.shape[-1]), live=live)
        mark_top_logits(out)
        return out


def rotary_tables(config: ModelConfig, device: torch.device) -> list[Tensor | None]:
    """The rotary table of each layer; None for a layer without rotation. Layers of the same rotation share a table."""
    tables = {
        rope: rope.table(config.head_dim, config.max_position_embeddings, device, config.max_seq_len)
        for rope in config.layer_ropes
        if rope is not None
    }
    return [None if rope is None else tables[rope] for rope in config.layer_ropes]
