"""Qwen3-Next: three of four layers have the gated delta rule, the others gated attention. Most have a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import MTP_KEY, ModelConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.models.gated_delta import GatedDelta, delta_memory
from weft.models.layers import Mixer
from weft.models.memory import LayerMemory, Pages, Recurrence
from weft.models.mixture_config import qwen_mixture
from weft.models.rope import FULL
from weft.ops.quantized import Matrix

LINEAR = "linear_attention"
"""The kind of layers with the gated delta rule, as `layer_types` names it."""


class Qwen3Next(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "mlp_bias": False,
        "qk_norm": True,
        "gated_attention": True,
        "norm_offset": 1.0,
        "partial_rotary": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
        MTP_KEY: 1,  # checkpoints have a module, and config.json does not count it
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {"memories": parse_memories(fields), "mixture": qwen_mixture(fields, has_shared=True)}

    @classmethod
    def make_mixer(
        cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int, rotary: Tensor | None
    ) -> Mixer:
        # A module of multi-token prediction, whose layers come after the decoder's, has attention.
        if layer >= config.num_layers or config.memories[layer].state is None:
            return super().make_mixer(config, weights, prefix, layer, rotary)
        prefix, memory = f"{prefix}linear_attn.", config.memories[layer]
        assert memory.state is not None
        parts = cls.take_projections(config.hidden_size, weights, prefix, memory.state.recurrences[0])
        return GatedDelta(config, weights, prefix, memory, parts)

    @classmethod
    def take_projections(
        cls, hidden: int, weights: WeightSource, prefix: str, sizes: Recurrence
    ) -> Sequence[Matrix]:
        """Take the weights of a recurrent layer's projections, in the order of `GatedDelta`."""
        groups, heads = sizes.num_key_heads, sizes.num_heads
        values = heads // groups * sizes.value_size
        shares = [sizes.key_size, sizes.key_size, values, values]
        # Each key head is followed by the value heads that it serves.
        fused = weights.take_matrix(f"{prefix}in_proj_qkvz.weight", groups * sum(shares), hidden)
        gates = weights.take_dense(f"{prefix}in_proj_ba.weight", 2 * heads, hidden)
        beta, decay = gates.view(groups, 2, heads // groups, hidden).unbind(1)
        return [*fused.view(groups, sum(shares), hidden).split(shares, 1), beta, decay]


def parse_memories(fields: Fields) -> tuple[LayerMemory, ...]:
    """The memory of each layer, which `layer_types` tells. Without it each layer of number `full_attention_interval`
    (default 4) has attention, the others the gated delta rule."""
    fields.must_be("hidden_act", "silu", "swish")
    fields.must_be("attn_output_gate", True)
    fields.must_be("output_gate_type", "silu", "swish")
    kinds = fields.layer_kinds("layer_types", LINEAR, FULL)
    if kinds is None:
        interval = fields.integer("full_attention_interval", 4)
        num_layers = fields.integer("num_hidden_layers")
        kinds = [LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers)]
    heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    if heads % key_heads:
        raise fields.error("linear_num_key_heads", f"is {key_heads}; it must divide the {heads} value heads")
    delta = delta_memory(
        heads,
        key_heads,
        fields.integer("linear_key_head_dim"),
        fields.integer("linear_value_head_dim"),
        fields.integer("linear_conv_kernel_dim"),
    )
    head_dim = fields.integer("head_dim")
    pages = LayerMemory(Pages(fields.integer("num_key_value_heads"), head_dim, head_dim))
    return tuple(delta if kind == LINEAR else pages for kind in kinds)
