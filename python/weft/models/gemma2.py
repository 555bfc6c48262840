"""Gemma 2: Gemma with norms before and after each part of a layer, soft caps, and windows in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import NormNames
from weft.models.fields import Fields
from weft.models.gemma import Gemma


class Gemma2(Gemma):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        **Gemma.traits,
        "norm_names": NormNames(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        "windowed": True,
        "full_every": 2,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma.defaults,
        "num_key_value_heads": 4,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {
            **super().parse_switches(fields),
            "attention_scale": fields.number("query_pre_attn_scalar") ** -0.5,
            "attention_softcap": _softcap(fields, "attn_logit_softcapping"),
            "logit_softcap": _softcap(fields, "final_logit_softcapping"),
        }


def _softcap(fields: Fields, key: str) -> float:
    """The soft cap `key`, 0 for none."""
    return 0.0 if fields.data.get(key) is None else fields.number(key)
