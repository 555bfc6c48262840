"""Converts a model directory to a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.architectures import read_config
from weft.models.checkpoint import Checkpoint
from weft.models.config import ModelConfig
from weft.models.gguf.names import EMBEDDING, FAMILIES, OUTPUT, OUTPUT_NORM
from weft.models.gguf.rotation import side_by_side
from weft.models.gguf.tokenizer import add_tokenizer
from weft.models.rope import Rope

ARCHITECTURE = "llama"
_DENSE = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
TYPES = (*_DENSE, "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""The types of matrices that weft writes. The package gguf has no way to make the others."""


def directory_to_gguf(directory: Path, file: Path, dtype: str, tokenizer: Path | None = None) -> Path:
    """Convert a model directory with a Llama to a GGUF file. Returns the file.

    Matrices have `dtype`, one of `TYPES`, norms float32. `tokenizer` is the directory with the tokenizer's files
    (default: the model's).

    Raises `ModelError` or `TokenizerError` if the model or the tokenizer can't be converted.
    """
    if dtype not in TYPES:
        raise ModelError(f"dtype is {dtype!r}; it must be {', '.join(map(repr, TYPES))}")
    import gguf  # slow to import

    config = _config(directory)
    part = file.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    _add_sizes(writer, config, directory.name)
    writer.add_file_type(getattr(gguf.LlamaFileType, _file_type(dtype)))
    add_tokenizer(writer, tokenizer or directory, config.vocab_size)
    kind = gguf.GGMLQuantizationType[_DENSE.get(dtype, dtype)]
    with Checkpoint(directory, config, torch.device("cpu")) as weights:
        for tensor in _tensors(config):
            _add_tensor(writer, tensor, weights, kind)
        if config.tie_word_embeddings:
            weights.drop("lm_head.weight")
        weights.finish()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, file)
    return file


def _file_type(dtype: str) -> str:
    """The name of a whole file's type."""
    return "ALL_F32" if dtype == "float32" else f"MOSTLY_{_DENSE.get(dtype, dtype)}"


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


class _Tensor(NamedTuple):
    """A tensor's names in a GGUF file and in a model directory, and its shape. `heads` is the number of heads if rotary
    embedding applies to its rows, else 0."""

    name: str
    directory_name: str
    shape: tuple[int, ...]
    heads: int = 0


def _tensors(config: ModelConfig) -> Iterator[_Tensor]:
    """All tensors of a Llama without biases, layer by layer."""
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    heads, names = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}, FAMILIES[ARCHITECTURE].names
    yield _Tensor(EMBEDDING, "model.embed_tokens.weight", (vocab, hidden))
    for layer in range(config.num_layers):
        for name, shape in shapes.items():
            inside = f"model.layers.{layer}.{names[name]}.weight"
            yield _Tensor(f"blk.{layer}.{name}.weight", inside, shape, heads.get(name, 0))
    yield _Tensor(OUTPUT_NORM, "model.norm.weight", (hidden,))
    if not config.tie_word_embeddings:
        yield _Tensor(OUTPUT, "lm_head.weight", (vocab, hidden))


def _add_tensor(writer: Any, tensor: _Tensor, weights: Checkpoint, kind: Any) -> None:
    rows = weights.take_raw(tensor.directory_name, *tensor.shape).float()
    if tensor.heads:
        rows = side_by_side(rows, tensor.heads)
    import gguf
    import gguf.quants

    if rows.ndim < 2 or rows.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(tensor.name, gguf.quants.quantize(rows.contiguous().numpy(), kind), raw_dtype=kind)
