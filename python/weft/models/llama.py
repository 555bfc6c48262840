"""Llama. Models that differ from it by flags are classes of their own, which name them (`traits`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.models.base import Hidden, KVIndex, PagedKV, WeightSource
from weft.models.config import ModelConfig, parse_decoder
from weft.models.layers import DecoderLayer, Linear, Place, norms
from weft.models.outputs import mark_output, wants_output

TOP_K_LOGITS = 10
"""How many of the largest logits of a position `TopKLogits` has, largest first."""


class Llama:
    """A pre-norm decoder with rotary embedding, grouped-query attention and SwiGLU.

    It marks `hidden_states.{i}` [B * T, H], what enters layer i (for i the number of layers, what leaves the last one,
    before the final norm), and `TopKLogits` and `TopKLogitsIndices` [B, T, min(10, V)].
    """

    traits: ClassVar[Mapping[str, bool]] = {}
    """The flags of `ModelConfig` that the architecture fixes, whatever config.json says."""

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = weights.take("model.embed_tokens.weight", *shape)
        self.device = self.embedding.device
        self.layers = [DecoderLayer(config, weights, f"model.layers.{i}.") for i in range(config.num_layers)]
        self.norm = norms(config, weights, "model.")("norm")
        self.head = Linear(
            self.embedding if config.tie_word_embeddings else weights.take("lm_head.weight", *shape)
        )
        self._state_names = [f"hidden_states.{i}" for i in range(config.num_layers + 1)]
        self.rope_table = config.rope.table(config.head_dim, config.max_position_embeddings, self.device)

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        return parse_decoder(data, where, **cls.traits)

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embedding)

    def forward(
        self, tokens: Tensor, kv: PagedKV, index: KVIndex, aux_layers: tuple[int, ...] = ()
    ) -> Hidden:
        place = Place.of(index, kv, self.rope_table)
        x = self.embed(tokens.reshape(-1))
        entering = {}
        for i, (layer, cache) in enumerate(zip(self.layers, kv.layers, strict=True)):
            if i in aux_layers:
                entering[i] = x.clone()
            mark_output(self._state_names[i], x)
            layer.add_to_(x, place, cache)
        mark_output(self._state_names[-1], x)
        last = self.norm(x)
        entering[len(self.layers)] = x
        entering[len(self.layers) + 1] = last
        states = [entering[i] for i in aux_layers]
        aux = states[0] if len(states) == 1 else torch.cat([x.narrow(1, 0, 0), *states], 1)
        return Hidden(last.view(*tokens.shape, -1), aux.view(*tokens.shape, aux.shape[1]))

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden.reshape(-1, hidden.shape[-1])).view(*hidden.shape[:-1], -1)
        if wants_output("TopKLogits") or wants_output("TopKLogitsIndices"):
            values, indices = logits.topk(min(TOP_K_LOGITS, logits.shape[-1]))
            mark_output("TopKLogits", values)
            mark_output("TopKLogitsIndices", indices)
        return logits
