"""Qwen3.5: Qwen3-Next with an MLP or a mixture in each layer. A model that reads images, too, reads text only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from weft.models.base import WeightSource
from weft.models.config import MTP_KEY, QWENS_MTP_KEY, ModelConfig
from weft.models.fields import Fields
from weft.models.memory import Recurrence
from weft.models.mixture_config import qwen_mixture
from weft.models.qwen3_next import Qwen3Next, parse_memories
from weft.models.text import KEY, TextWeights, text_config
from weft.ops.quantized import Matrix


class Qwen35(Qwen3Next):
    """Qwen3.5 with MLPs. See `Decoder`."""

    # The positions of a text's rotation (`mrope_section`) are equal in all its sections.
    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen3Next.defaults,
        "vocab_size": 248320,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        MTP_KEY: 0,  # another key than Qwen3-Next's
        QWENS_MTP_KEY: 1,
    }

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        super().__init__(config, TextWeights(weights, ("visual.",), config.tie_word_embeddings))

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        if KEY in data:
            data, where = text_config(data, where, is_tied=False)
        return super().parse_config(data, where)

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {"memories": parse_memories(fields)}

    @classmethod
    def take_projections(
        cls, hidden: int, weights: WeightSource, prefix: str, sizes: Recurrence
    ) -> Sequence[Matrix]:
        heads, values = sizes.num_heads, sizes.num_heads * sizes.value_size
        rows = {
            "in_proj_qkv": 2 * sizes.num_key_heads * sizes.key_size + values,
            "in_proj_z": values,
            "in_proj_b": heads,
            "in_proj_a": heads,
        }
        return [weights.take_matrix(f"{prefix}{name}.weight", count, hidden) for name, count in rows.items()]


class Qwen35Moe(Qwen35):
    """Qwen3.5 with mixtures. See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen35.defaults,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "intermediate_size": 512,  # no layer has an MLP
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        # All layers have mixtures, and all weights of experts are divided by their sum.
        fixed = {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}
        mixture = qwen_mixture(Fields({**fields.data, **fixed}, fields.where), has_shared=True)
        return {**super().parse_switches(fields), "mixture": mixture}
