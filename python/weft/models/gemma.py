"""Gemma: norms with weights around 0, embeddings times the root of their size, and GELU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.ops.linear import Linear


class Gemma(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"mlp_bias": False, "norm_offset": 1.0}
    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        super().__init__(config, weights)
        matrix = self.embedding.weight if isinstance(self.embedding, Linear) else self.embedding
        # The models were trained with the factor in the dtype of the weights: 55.5 for 3072 in bfloat16.
        dtype = torch.bfloat16
        if isinstance(matrix, Tensor) and matrix.is_floating_point():
            dtype = matrix.dtype
        scale = torch.tensor(config.embedding_scale, dtype=dtype).item()
        self.config = replace(config, embedding_scale=scale)

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        if data.get("hidden_act") == "gelu":  # in the first files, which mean the approximation
            data = {**data, "hidden_act": "gelu_pytorch_tanh"}
        return super().parse_config(data, where)

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        fields.must_be("use_bidirectional_attention", False)
        return {"embedding_scale": sqrt(fields.integer("hidden_size"))}
