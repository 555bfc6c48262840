"""GPT-OSS: mixtures of experts with biases, attention windows in every other layer, and sink logits.

Checkpoints have the experts' weights in 16 bits, or as published, in MXFP4. GGUF files have the projections of an
expert apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import MixtureConfig, ModelConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.models.layers import FeedForward
from weft.models.matrices import Matrices
from weft.models.mixture import Projections, make_mixture, make_router, separate_experts
from weft.models.quantized.parse import KEY, MXFP4
from weft.ops.activation import Activation, Function
from weft.ops.quantized import Matrix
from weft.ops.routing import Choice, Scores

ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The scaling of a config without one."""


class GptOss(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "sink_logits": True,
        "windowed": True,
        "full_every": 2,
        "quantizations": (MXFP4,),
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "attention_bias": True,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
    }

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        if not (data.get("rope_parameters") or data.get("rope_scaling")):
            data = {**data, "rope_parameters": ROPE}
        if data.get(KEY) is not None and not (data.get("dtype") or data.get("torch_dtype")):
            data = {**data, "dtype": "bfloat16"}
        return super().parse_config(data, where)

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        fields.must_be("hidden_act", "silu")
        mixture = MixtureConfig(
            fields.integer("num_local_experts", 128),
            fields.integer("intermediate_size"),
            Choice(fields.integer("num_experts_per_tok", 4), Scores.TOP_SOFTMAX),
            router="router",
            projections=("experts.gate_up_proj", "experts.down_proj"),
        )
        activation = Activation(
            Function.SILU,
            slope=fields.number("swiglu_alpha", 1.702),
            limit=fields.number("swiglu_limit", 7.0),
            shift=1.0,
        )
        return {"mixture": mixture, "activation": activation}

    @classmethod
    def make_mlp(cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int) -> FeedForward:
        mixture, prefix = config.mixture, f"{prefix}mlp."
        assert mixture is not None
        hidden, inner, count = config.hidden_size, mixture.intermediate_size, mixture.num_experts
        router = make_router(
            [weights.take_dense(f"{prefix}router.weight", count, hidden)],
            weights.take(f"{prefix}router.bias", count),
        )
        name_of_up, name_of_down = (f"{prefix}{name}" for name in mixture.projections)
        down_bias = weights.take(f"{name_of_down}_bias", count, hidden)
        if f"{prefix}experts.gate_proj_bias" in weights:  # GGUF
            apart = replace(mixture, projections=APART)
            gates, ups = (weights.take(f"{prefix}experts.{name}_bias", count, inner) for name in APART[:2])
            parts = separate_experts(config, apart, weights, prefix)
            return make_mixture(config, mixture, router, parts, biases=(gates, ups, down_bias))
        up_bias = weights.take(f"{name_of_up}_bias", count, 2 * inner)
        load = _from_floats if config.quantization is None else _from_blocks
        parts = load(weights, name_of_up, name_of_down, (count, hidden, inner))
        biases = up_bias[:, ::2], up_bias[:, 1::2], down_bias
        return make_mixture(config, mixture, router, parts, biases=biases)


APART = ("gate_proj", "up_proj", "down_proj")
"""The projections of experts that a GGUF file stores apart."""
GATES, UPS = slice(0, None, 2), slice(1, None, 2)
"""The outputs of an expert's first projection: gates and ups alternate."""


def _from_blocks(weights: WeightSource, up: str, down: str, sizes: tuple[int, int, int]) -> Projections:
    """The projections of all experts. `sizes` are their number, the hidden size, and that of an expert."""
    count, hidden, inner = sizes
    gates, ups = weights.take_matrices(up, count, 2 * inner, hidden).split(GATES, UPS)
    return gates, ups, weights.take_matrices(down, count, hidden, inner)


def _from_floats(weights: WeightSource, up: str, down: str, sizes: tuple[int, int, int]) -> Projections:
    """The projections of all experts, which are stored as matrices [in, out]."""
    count, hidden, inner = sizes
    stored_ups = weights.take_matrices(up, count, hidden, 2 * inner)
    stored_downs = weights.take_matrices(down, count, inner, hidden)

    def transposed(matrix: Matrix) -> Tensor:
        assert isinstance(matrix, Tensor)
        return matrix.t()

    both = Matrices(count, lambda expert: transposed(stored_ups[expert]).contiguous())
    gates, ups = both.split(GATES, UPS)
    return gates, ups, Matrices(count, lambda expert: transposed(stored_downs[expert]))
