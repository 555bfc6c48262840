"""The dtypes of a model's weights and activations, by the caller's choice and the device."""

from __future__ import annotations

from dataclasses import replace

import torch

from weft.errors import ModelError
from weft.models.config import DTYPES, ModelConfig

_HALVES = (torch.float16, torch.bfloat16)


def with_dtype(config: ModelConfig, dtype: str, device: torch.device) -> ModelConfig:
    """Set the dtypes of `config` for a model on `device`. `dtype` is the caller's choice, by name.

    On CUDA all tensors have `dtype`; "auto" means the dtype in config.json. The CPU computes in float32, and `dtype`
    applies only to the weights. There "auto" keeps the dtype of stored 16-bit weights, and converts others to the dtype
    in config.json. Other dtypes than "auto" are also those of quantised matrices."""
    if dtype not in ("auto", *DTYPES):
        raise ModelError(f"dtype {dtype!r} is none of 'auto', {', '.join(map(repr, DTYPES))}")
    is_chosen = dtype in DTYPES
    if device.type == "cpu":
        default = config.dtype if config.dtype in _HALVES and not config.keeps_formats else None
        weight_dtype = DTYPES.get(dtype, default)
        return replace(config, dtype=torch.float32, weight_dtype=weight_dtype, dequantizes=is_chosen)
    chosen = DTYPES.get(dtype, config.dtype)
    weight_dtype = chosen if is_chosen or not config.keeps_formats else None
    return replace(config, dtype=chosen, weight_dtype=weight_dtype, dequantizes=is_chosen)


def with_dtype_of(config: ModelConfig, other: ModelConfig, device: torch.device) -> ModelConfig:
    """Set the dtypes of `config` as those of `other`, a model on `device`. A quantised model is dequantised only if the
    caller chose a dtype for `other`."""
    if config.keeps_formats and not other.dequantizes:
        name = "auto"
    elif device.type == "cpu":
        name = dtype_name(other)
    else:  # there a quantised model's matrices have no dtype, but its activations do
        name = dtype_name(replace(other, weight_dtype=other.dtype))
    return replace(with_dtype(config, name, device), dtype=other.dtype)


def dtype_name(config: ModelConfig) -> str:
    """The name to pass to `load_model` as `dtype`, so that another model gets the weight dtype of `config`."""
    return next((name for name, dtype in DTYPES.items() if dtype == config.weight_dtype), "auto")
