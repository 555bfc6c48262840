"""Loads the model of a Hugging Face directory: config.json, and weights in safetensors files or in a GGUF file.

A model is built twice. The first time its weights have no contents, so that a missing, wrong or unused tensor is found
before any is read and before memory is allocated.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import torch

from weft.errors import InputError, ModelError
from weft.models.architectures import read_config
from weft.models.base import Model
from weft.models.checkpoint import META, Checkpoint
from weft.models.config import ModelConfig
from weft.models.dtypes import with_dtype, with_dtype_of
from weft.models.mtp_layout import INSIDE
from weft.models.progress import LoadProgress
from weft.ops.packing import PackingThreads, activations_named
from weft.runtime.host_memory import available_bytes


def load_model(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    max_seq_len: int | None = None,
    activation_dtype: str = "auto",
    like: ModelConfig | None = None,
) -> Model:
    """Load the model of a directory onto `device`, for texts of at most `max_seq_len` tokens (default: unknown).

    `dtype` is "float32", "float16", "bfloat16" or "auto" (`with_dtype`): on CUDA the dtype in config.json, on the CPU
    the stored one. Quantised matrices stay as they are with "auto", and get the other dtypes. `activation_dtype` is as
    in `EngineConfig`. `like` is the config of another model, whose dtypes count instead of both (`with_dtype_of`).
    Raises `ModelError` for missing, unexpected or misshapen tensors and for unknown architectures, and `InputError` for
    an `activation_dtype` that `device` does not have.
    """
    directory, device = Path(path), torch.device(device)
    model_class, config = read_config(directory)
    if like is None:
        rounding = activations_named(activation_dtype, device)
        config = replace(with_dtype(config, dtype, device), rounding=rounding)
    else:
        config = replace(with_dtype_of(config, like, device), rounding=like.rounding)
    config = replace(config, max_seq_len=max_seq_len)
    _, headers = check_weights(model_class, config, directory)
    _check_room(headers, device)
    with (
        torch.inference_mode(),
        LoadProgress(headers.directory, headers.stored_bytes) as progress,
        Checkpoint(directory, config, device, headers, progress) as weights,
    ):
        return build_model(model_class, config, weights)


def check_weights(model_class: type[Model], config: ModelConfig, directory: Path) -> tuple[Model, Checkpoint]:
    """Check a directory's weights by their headers. Returns the model without contents, on the device "meta", and the
    headers of the tensors that it takes. Raises `ModelError` for missing, unexpected or misshapen tensors and for wrong
    dtypes."""
    headers = Checkpoint(directory, config, META)
    with torch.inference_mode():
        return build_model(model_class, config, headers), headers


def _check_room(headers: Checkpoint, device: torch.device) -> None:
    """Raise `ModelError` if the weights do not fit in the free memory. Else the system would end a process."""
    if device.type != "cpu":
        return  # the device's allocator refuses
    try:
        free = available_bytes()
    except InputError:  # unknown
        return
    if headers.num_bytes > free:
        raise ModelError(
            f"{headers.directory}: there is no memory for a model of this size: its weights need "
            f"{headers.num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; use a smaller model, or end other "
            "processes"
        )


def build_model(model_class: type[Model], config: ModelConfig, weights: Checkpoint) -> Model:
    """Make the model. Raises `ModelError` if `weights` holds unused tensors or the model does not fit in memory."""
    if config.tie_word_embeddings:
        weights.drop("lm_head.weight")
    for layout in INSIDE:
        for module in range(config.num_mtp_modules):
            weights.drop_all(layout.prefix(module, config.num_layers))
    try:
        with PackingThreads(config.rounding) as packing:
            model = model_class(config, weights)
    except (RuntimeError, MemoryError, OSError) as error:
        # torch's CPU allocators raise nothing more specific.
        if isinstance(error, RuntimeError) and "alloc" not in str(error):
            raise
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        reason = (str(error).splitlines() or ["the system gives no more"])[0][:200]
        raise ModelError(
            f"{weights.directory}: there is no memory for a model of this size: {reason}"
        ) from error
    weights.finish()
    is_narrow = bool(weights.matrix_formats) or any(
        dtype is not torch.float32 for dtype in weights.matrix_dtypes
    )
    model.config = replace(model.config, has_narrow_weights=is_narrow, roundings=frozenset(packing.chosen))
    return model
