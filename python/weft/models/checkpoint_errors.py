"""The errors about the tensors of a checkpoint. They name the tensor, and tell what to do."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from weft.errors import ModelError
from weft.models.config import ModelConfig
from weft.models.quantized.method import WEIGHT
from weft.models.quantized.mxfp4 import Mxfp4
from weft.models.quantized.options import ADVICE
from weft.models.quantized.parse import KEY
from weft.models.stored import Stored

BIAS = ".bias"
FLOATS = ("F64", "F32", "F16", "BF16")
"""The dtypes of tensors that are not quantised, as safetensors names them."""
_QUANTIZED = (
    ".qweight",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".absmax",
    ".SCB",
    "_scales",
    "_blocks",
)
"""Ends of the names of tensors that only quantized checkpoints have."""
_NO_METHOD = f"The weights are quantised, and {KEY!r} in config.json does not say how; {ADVICE}"
_LAYER = re.compile(r"layers\.(\d+)\.")


def missing(
    directory: Path, name: str, shape: Sequence[int], stored: Collection[str], config: ModelConfig
) -> ModelError:
    """The error for tensor `name` of `shape`, which is not among the names in `stored`."""
    return ModelError(
        f"{directory}: no tensor {name!r}; expected one of shape {list(shape)}. "
        f"{_why_missing(name, stored, config)}"
    )


def _why_missing(name: str, stored: Collection[str], config: ModelConfig) -> str:
    method = config.quantization
    if method is None and any(other.endswith(_QUANTIZED) for other in stored):
        return _NO_METHOD
    if name == "lm_head.weight":
        return (
            "If the output projection shares the embedding's weights, 'tie_word_embeddings' in config.json must "
            "be true; else get the model again"
        )
    layer = _LAYER.search(name)
    if layer is not None and not any(layer[0] in other for other in stored):
        return (
            f"'num_hidden_layers' in config.json is {config.num_layers}, and the weights have no layer {layer[1]}; "
            "get the weights and the config.json of one model"
        )
    if name.endswith(BIAS):
        return (
            "config.json or the architecture that it names wants biases ('attention_bias', 'mlp_bias'); get the "
            "weights and the config.json of one model"
        )
    if method is not None and method.packed and name.endswith(WEIGHT) and not isinstance(method, Mxfp4):
        return (
            f"Nor is there {method.codes_name(name)!r}, which {method.title} would have. Get the model again"
        )
    return "Get the model again, its weights and its config.json"


def misshapen(name: str, stored: Stored, shape: Sequence[int], config: ModelConfig) -> ModelError:
    """The error for tensor `name`, which should have `shape`."""
    return ModelError(
        f"{stored.path}: tensor {name!r} has shape {list(stored.shape)}; config.json wants {list(shape)}. "
        f"{_why_misshapen(stored.shape, shape, config)}"
    )


def _why_misshapen(shape: Sequence[int], wanted: Sequence[int], config: ModelConfig) -> str:
    """Name the keys of config.json that contradict a tensor's shape."""
    advice = "Get the weights and the config.json of one model"
    sizes = {
        "'vocab_size'": config.vocab_size,
        "'hidden_size'": config.hidden_size,
        "'intermediate_size'": config.intermediate_size,
        "'num_attention_heads' times 'head_dim'": config.num_heads * config.head_dim,
        "'num_key_value_heads' times 'head_dim'": config.num_kv_heads * config.head_dim,
        "'head_dim'": config.head_dim,
    }
    for size, want in zip(shape, wanted, strict=False):
        keys = [key for key, value in sizes.items() if value == want]
        if size != want and keys and len(shape) == len(wanted):
            return f"{' or '.join(keys)} is {want} there, where the tensor has {size}. {advice}"
    return advice


def not_floats(name: str, stored: Stored) -> ModelError:
    """The error for tensor `name`, whose dtype is not among `FLOATS`."""
    return ModelError(
        f"{stored.path}: tensor {name!r} is {stored.dtype}; expected floating-point weights, of {', '.join(FLOATS)}. "
        f"If the model is quantised, {KEY!r} in config.json must say how; {ADVICE}"
    )


def wrong_part(name: str, stored: Stored, dtypes: Sequence[str]) -> ModelError:
    """The error for a tensor of a quantised matrix whose dtype is not among `dtypes`."""
    return ModelError(
        f"{stored.path}: tensor {name!r} is {stored.dtype}; expected {' or '.join(dtypes)}, by "
        f"{KEY!r} in config.json"
    )


def unexpected(names: Sequence[str], stored: Mapping[str, Stored], config: ModelConfig) -> ModelError:
    """The error for the tensors `names`, which the model does not use."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    reason = "The architecture that config.json names has no place for them"
    layers = {int(layer[1]) for layer in map(_LAYER.search, names) if layer is not None}
    if layers and min(layers) >= config.num_layers:
        reason = (
            f"'num_hidden_layers' in config.json is {config.num_layers}, and the weights have more layers"
        )
    elif all(name.endswith(BIAS) for name in names):
        reason += ", or a key such as 'attention_bias' is false there"
    elif config.quantization is None and any(name.endswith(_QUANTIZED) for name in names):
        reason = _NO_METHOD
    return ModelError(
        f"{stored[names[0]].path}: unexpected tensors {', '.join(map(repr, names[:3]))}{more}. {reason}"
    )
