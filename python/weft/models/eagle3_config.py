"""The config.json of an EAGLE3 head, in the published formats.

Heads of SafeAILab, SpecForge and NVIDIA have a decoder's keys at the top, and keys of their own there or in
`eagle_config`. Heads of speculators have the decoder's keys in `transformer_layer_config`, and their own at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.errors import ModelError
from weft.models.config import ModelConfig, fit_target, parse_decoder
from weft.models.fields import Fields

_AUX_KEY = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Eagle3Config:
    """The sizes and flags of a head.

    layer: the config of its decoder layer.
    aux_layers: the target's layers whose input hidden states it reads.
    target_hidden_size: the size of each of them.
    norm_before_residual: attention's output is added to the normed feature, otherwise to the feature itself.
    norm_before_fc: the concatenated hidden states are normed before `fc`. fc_norm: each one is normed by itself.
    norm_output: the next draft reads the head's output after the final norm, otherwise before it.
    fc_bias: `fc` has a bias.
    """

    layer: ModelConfig
    aux_layers: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    fc_bias: bool = False


def parse_eagle3(data: Mapping[str, Any], target: ModelConfig, where: str) -> Eagle3Config:
    """Parse the config of a head for `target`. Raises `ModelError` if it does not fit, or if weft does not run a head
    of its kind."""
    top = Fields(data, where)
    top.must_be("speculators_model_type", "eagle3")
    nested = _nested(data, "transformer_layer_config", where)
    if nested:
        data = {**data, **nested, "architectures": data.get("architectures")}
    if data.get("model_type") == "llama4_text":
        data = {**data, "intermediate_size": data.get("intermediate_size_mlp")}
    fields = Fields(data, where)
    eagle = Fields(_nested(data, "eagle_config", where), f"{where}: eagle_config")
    _refuse_others(fields, eagle)

    is_narrow = data.get("target_hidden_size") is not None
    layer = parse_decoder(data, where, windowed=bool(data.get("layer_types")))
    layer = fit_target(layer, target, where, ("vocab_size",) if is_narrow else ("hidden_size", "vocab_size"))
    width = fields.integer("target_hidden_size", target.hidden_size)
    if width != target.hidden_size:
        raise fields.error(
            "target_hidden_size",
            f"is {width}; a drafter of this target ({target.architecture}) has {target.hidden_size}",
        )

    def flag(*keys: str) -> bool:
        return any(source.flag(key) for source in (eagle, fields) for key in keys)

    config = Eagle3Config(
        layer=layer,
        aux_layers=_aux_layers(fields, eagle, target.num_layers),
        target_hidden_size=width,
        draft_vocab_size=fields.integer("draft_vocab_size", layer.vocab_size),
        norm_before_residual=flag("norm_before_residual"),
        norm_before_fc=flag("norm_before_fc"),
        fc_norm=flag("fc_norm"),
        norm_output=flag("norm_output", "return_hidden_post_norm"),
        fc_bias=fields.flag("bias"),
    )
    if config.norm_before_fc and config.fc_norm:
        raise fields.error("fc_norm", "is True, and so is 'norm_before_fc'; a head has one of them")
    return config


def _refuse_others(fields: Fields, eagle: Fields) -> None:
    """Raise `ModelError` for a head of a kind that weft does not run."""
    fields.must_be("num_hidden_layers", 1)
    fields.must_be("kv_lora_rank")  # latent attention
    fields.must_be("parallel_drafting", False)
    fields.must_be("logit_scale", 1)
    eagle.must_be("use_aux_hidden_state", True)
    eagle.must_be("use_input_layernorm_in_first_layer", True)
    eagle.must_be("use_last_layernorm", True)
    eagle.must_be("use_mtp_layernorm", False)
    eagle.must_be("eh_proj_before_attn", False)
    eagle.must_be("parallel_draft_step", 1)


def _aux_layers(fields: Fields, eagle: Fields, num_layers: int) -> tuple[int, ...]:
    """The target's layers whose inputs the head reads.

    At the top of the config, a number i means the input of layer i, as in speculators and vLLM. In `eagle_config` it
    means that in some heads, and the output of layer i in those of SpecForge and of NVIDIA's ModelOpt. Those begin with
    layer 1, and SGLang tells them apart by that, too (sgl-project/sglang, pull request 25454).
    """
    source = eagle if eagle.data.get(_AUX_KEY) else fields
    ids = source.data.get(_AUX_KEY) or [2, num_layers // 2, num_layers - 3]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise source.error(_AUX_KEY, f"is {ids!r}; it must list numbers of the target's layers")
    is_output = source is eagle and ids[0] == 1
    inputs = tuple(i + is_output for i in ids)
    if not all(0 <= i <= num_layers for i in inputs):
        raise source.error(
            _AUX_KEY,
            f"is {ids!r}; it must list layers of the target, each 0 to {num_layers - is_output}",
        )
    return inputs


def _nested(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """The object under `key`; an empty one if it is missing."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelError(f"{where}: {key!r} is {value!r}; it must be an object")
    return value
