"""Llama. A model that differs from it only in flags is a subclass that sets them in `traits`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from weft.models.base import Hidden, PagedKV, WeightSource
from weft.models.config import ModelConfig, parse_decoder
from weft.models.layers import DecoderLayer, norms
from weft.models.outputs import mark_output, mark_top_logits
from weft.ops.attention import Rows
from weft.ops.linear import Linear
from weft.ops.rows import copy_rows_, embed


class Llama:
    """A pre-norm decoder with rotary embedding, grouped-query attention and SwiGLU.

    It marks these outputs: `hidden_states.{i}` [B * T, H], the input of layer i (i = num_layers: the last layer's
    output before the final norm), and `TopKLogits` and `TopKLogitsIndices` [B, T, min(10, V)]."""

    traits: ClassVar[Mapping[str, bool]] = {}
    """Flags of `ModelConfig` that the architecture fixes; config.json can't change them. `windowed`: whether layers may
    have attention windows."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embedding: Tensor | Linear = weights.take_matrix("model.embed_tokens.weight", *shape)
        self.device = self.embedding.device
        if config.tie_word_embeddings:
            # Before the layers: while the largest matrix is packed, little else is in memory.
            self.head = self.embedding = Linear(self.embedding)
        rotary = config.rope.table(
            config.head_dim, config.max_position_embeddings, self.device, config.max_seq_len
        )
        prefixes = (f"model.layers.{i}." for i in range(config.num_layers))
        self.layers = [DecoderLayer(config, weights, prefix, rotary) for prefix in prefixes]
        self.norm = norms(config, weights, "model.")("norm")
        if not config.tie_word_embeddings:
            self.head = Linear(weights.take_matrix("lm_head.weight", *shape))
        self._state_names = [f"hidden_states.{i}" for i in range(config.num_layers + 1)]

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        return parse_decoder(data, where, **cls.traits)

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        live = rows.live
        x = embed(self.embedding, tokens.reshape(-1), self.config.dtype, live)
        width = x.shape[1]
        if aux_out is None:
            aux_out = x.new_empty(*tokens.shape, len(aux_layers) * width)
        parts = aux_out.flatten(0, -2).split(width, 1) if aux_layers else ()
        places: defaultdict[int, list[Tensor]] = defaultdict(list)
        for number, place in zip(aux_layers, parts, strict=True):
            places[number].append(place)
        for place in places[0]:
            copy_rows_(place, x, live)
        for i, (layer, layer_kv) in enumerate(zip(self.layers, kv.layers, strict=True)):
            assert layer_kv is not None
            mark_output(self._state_names[i], x)
            left = places[i + 1]
            layer.add_to_(x, rows, layer_kv, left[0] if left else None)
            for place in left[1:]:
                copy_rows_(place, x, live)
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
