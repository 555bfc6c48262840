"""OLMo 2: norms only after attention and after the MLP, and norms of queries and keys over all heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import NormNames
from weft.models.decoder import Decoder


class Olmo2(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "mlp_bias": False,
        "qk_norm": True,
        "qk_norm_spans_heads": True,
        "norm_names": NormNames(
            before_mixer=None,
            after_mixer="post_attention_layernorm",
            before_mlp=None,
            after_mlp="post_feedforward_layernorm",
        ),
    }
    defaults: ClassVar[Mapping[str, Any]] = {"rms_norm_eps": 1e-5}
