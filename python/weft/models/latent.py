"""Multi-head latent attention (MLA), as in DeepSeek-V2 and V3.

A position's keys and values are products of one latent, and of a key part that all heads share. Only these two are
kept. `weft.ops.latent` explains how attention reads them; its letters are used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.models.layers import LayerViews, Mixer, pairs
from weft.models.matrices import AnyMatrix, joined
from weft.models.memory import Pages
from weft.models.residual import Residual
from weft.models.rope import rope_key, yarn_growth
from weft.ops.attention import Heads, Rows, attend
from weft.ops.latent import LatentQueries, LatentValues
from weft.ops.linear import Linear, Norm

EPS = 1e-6
"""The epsilon of the norms inside the attention. No config changes it."""


@dataclass(frozen=True)
class LatentConfig(ModelConfig):
    """The config of a decoder with latent attention. `head_dim` is P, the rotated elements of a head.

    `query_size` is Q, 0 if queries are not compressed, `plain_size` is D, `latent_size` R and `value_size` V."""

    query_size: int = 0
    plain_size: int = 0
    latent_size: int = 0
    value_size: int = 0

    @property
    def pages(self) -> Pages:
        """One key for all heads, the latent and then the rotated part. The latent is the value, too."""
        return Pages(1, self.latent_size + self.head_dim, self.latent_size, values_in_keys=True)


class LatentAttention:
    """Latent attention over paged latents. `rotary` is a table from `Rope.table`.

    The product `down` gives compressed queries and latents, `output` follows attention. A layer has five operations
    before its MLP."""

    def __init__(
        self, config: LatentConfig, weights: WeightSource, prefix: str, rotary: Tensor | None
    ) -> None:
        heads, hidden = config.num_heads, config.hidden_size
        plain, rotated, latent = config.plain_size, config.head_dim, config.latent_size
        head = plain + rotated

        def paired(weight: AnyMatrix, plain: int) -> AnyMatrix:
            return weight if config.adjacent_pairs else _paired(weight, plain, rotated)

        def norm(name: str, size: int) -> Norm:
            return Norm(weights.take(f"{prefix}{name}.weight", size), EPS)

        q_up, q_norm = None, None
        if config.query_size:
            first = weights.take_matrix(f"{prefix}q_a_proj.weight", config.query_size, hidden)
            q_up = weights.take_matrix(f"{prefix}q_b_proj.weight", heads * head, config.query_size)
            q_up, q_norm = paired(q_up, plain), norm("q_a_layernorm", config.query_size)
        else:
            first = paired(weights.take_matrix(f"{prefix}q_proj.weight", heads * head, hidden), plain)
        kv_down = weights.take_matrix(f"{prefix}kv_a_proj_with_mqa.weight", latent + rotated, hidden)
        biases = None
        if config.attention_bias:
            kv_bias = paired(weights.take(f"{prefix}kv_a_proj_with_mqa.bias", latent + rotated), latent)
            if config.query_size:
                first_bias = weights.take(f"{prefix}q_a_proj.bias", config.query_size)
            else:  # queries that are not compressed never have one
                first_bias = kv_bias.new_zeros(heads * head)
            biases = [first_bias, kv_bias]
        self.down = Linear([first, paired(kv_down, latent)], biases)
        size = plain + config.value_size
        # Heads multiply by parts of it on both sides, so it has to be numbers.
        kv_up = weights.take_dense(f"{prefix}kv_b_proj.weight", heads * size, latent).view(
            heads, size, latent
        )
        self.queries = LatentQueries(q_up, kv_up[:, :plain], q_norm, norm("kv_a_layernorm", latent), rotated)
        self.values = LatentValues(kv_up[:, plain:])
        self.output = Linear(
            weights.take_matrix(f"{prefix}o_proj.weight", hidden, heads * config.value_size),
            weights.take(f"{prefix}o_proj.bias", hidden) if config.output_bias else None,
            scale=config.residual_scale,
        )
        scale = head**-0.5 if config.attention_scale is None else config.attention_scale
        self.heads = Heads(heads, rotary, scale, first_rotated=latent)

    def add_to_(
        self, stream: Residual, before: Norm | None, after: Norm | None, rows: Rows, memory: LayerViews
    ) -> None:
        """See `Mixer`."""
        assert memory.kv is not None
        queries = self.queries(stream.read(self.down, before), stream.live)
        attended = attend(queries, memory.kv, rows, self.heads)
        stream.add(self.output, self.values(attended, stream.live), after)


class LatentDecoder(Decoder):
    """A decoder with latent attention in each layer; methods and outputs are those of `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"config_class": LatentConfig, "num_kv_heads": 1, "mlp_bias": False}
    defaults: ClassVar[Mapping[str, Any]] = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        rotated, plain = fields.integer("qk_rope_head_dim"), fields.integer("qk_nope_head_dim")
        if rotated % 2:
            raise fields.error("qk_rope_head_dim", f"is {rotated}; rotary embedding needs an even one")
        return {
            "head_dim": rotated,
            "query_size": 0 if fields.data.get("q_lora_rank") is None else fields.integer("q_lora_rank"),
            "plain_size": plain,
            "latent_size": fields.integer("kv_lora_rank"),
            "value_size": fields.integer("v_head_dim"),
            "adjacent_pairs": fields.flag("rope_interleave", True),
            "attention_scale": (plain + rotated) ** -0.5 * _growth(fields) ** 2,
        }

    @classmethod
    def make_mixer(
        cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int, rotary: Tensor | None
    ) -> Mixer:
        assert isinstance(config, LatentConfig)
        return LatentAttention(config, weights, f"{prefix}self_attn.", rotary)


def _growth(fields: Fields) -> float:
    """The growth of queries and keys for long texts, by `mscale_all_dim`."""
    key = rope_key(fields)
    data = fields.data.get(key)
    if not isinstance(data, dict) or (data.get("rope_type") or data.get("type") or "default") == "default":
        return 1.0
    scaling = Fields(data, f"{fields.where}: {key}")
    if not data.get("mscale_all_dim"):  # 0 means none
        return 1.0
    return yarn_growth(scaling.number("factor"), scaling.number("mscale_all_dim"))


def _paired(weight: AnyMatrix, plain: int, rotated: int) -> AnyMatrix:
    """Reorder the last `rotated` of each `plain + rotated` rows, so that adjacent ones are rotated. Keeps the shape of
    `weight`."""
    if weight.is_meta:  # torch would import its compiler to concatenate
        return weight
    heads = weight.unflatten(0, (-1, plain + rotated))
    first, last = heads.split((plain, rotated), 1)
    last = pairs(last, rotated // 2).reshape(*last.shape)
    whole: AnyMatrix = joined(first, last, 1).view(*weight.shape)
    return whole
