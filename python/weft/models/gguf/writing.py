"""Converts a model directory to a GGUF file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.config import DTYPES, ModelConfig
from weft.models.gguf.fields import ARCHITECTURE
from weft.models.gguf.names import Entry, entries
from weft.models.gguf.rotation import side_by_side
from weft.models.gguf.tokenizer import add_tokenizer
from weft.models.rope import Rope
from weft.models.weights import Checkpoint, read_config

_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def directory_to_gguf(directory: Path, file: Path, dtype: str, tokenizer: Path | None = None) -> Path:
    """Convert a model directory with a Llama to a GGUF file. Returns the file.

    Matrices have `dtype` ("float32", "float16" or "bfloat16"), norms float32. `tokenizer` is the directory with the
    tokenizer's files (default: the model's).

    Raises `ModelError` or `TokenizerError` if the model or the tokenizer can't be converted.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype is {dtype!r}; it must be {', '.join(map(repr, DTYPES))}")
    import gguf  # slow to import

    config = _config(directory)
    part = file.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    _add_sizes(writer, config, directory.name)
    writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[dtype]))
    add_tokenizer(writer, tokenizer or directory, config.vocab_size)
    kind = getattr(gguf.GGMLQuantizationType, _TYPES[dtype])
    with Checkpoint(directory, config, torch.device("cpu")) as weights:
        for entry in entries(config):
            _add_tensor(writer, entry, weights, kind)
        if config.tie_word_embeddings:
            weights.drop("lm_head.weight")
        weights.finish()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, file)
    return file


_FILE_TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "bfloat16": "MOSTLY_BF16"}


def _config(directory: Path) -> ModelConfig:
    """The directory's config. Raises `ModelError` for a model that GGUF's Llama can't represent."""
    named = read_json(directory / "config.json").get("architectures")
    _, config = read_config(directory)
    biased = config.attention_bias or config.output_bias or config.mlp_bias
    if (
        named != ["LlamaForCausalLM"]
        or biased
        or config.rope != Rope(config.rope.theta)
        or config.num_mtp_modules
    ):
        raise ModelError(
            f"{directory}: only a LlamaForCausalLM without biases, scaled rotary embedding and multi-token-prediction "
            "layers can be converted"
        )
    return config


def _add_sizes(writer: Any, config: ModelConfig, name: str) -> None:
    writer.add_name(name)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)


def _add_tensor(writer: Any, entry: Entry, weights: Checkpoint, kind: Any) -> None:
    rows = weights.take_raw(entry.directory, *entry.shape).float().numpy()
    if entry.heads:
        rows = side_by_side(rows, entry.heads)
    rows = np.ascontiguousarray(rows)
    import gguf
    import gguf.quants

    if rows.ndim < 2:
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(entry.gguf, gguf.quants.quantize(rows, kind), raw_dtype=kind)
