"""Writes transformers' networks as GGUF files, as llama.cpp's converters do. Names of tensors are those of the package
gguf, so that weft's names are compared with another's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import torch
from torch import Tensor

from weft import package_model_path
from weft.models.gguf.tokenizer import add_tokenizer

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "granite": "granite",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "smollm3": "smollm3",
    "gpt_oss": "gpt-oss",
}
"""The architecture of a file for each `model_type` of transformers."""
WINDOWED = ("gemma2", "gemma3_text", "phi3", "olmo3", "gpt_oss")
"""The values of `model_type` whose windows a file has."""
ADJACENT = ("llama", "granite", "smollm3")
"""The architectures whose files have the rows of queries and keys in another order than transformers."""


def write(
    network: Any,
    file: Path,
    kind: str = "F32",
    tokenizer: Path | None = None,
    is_dequantized: bool = False,
    part_size: int = 0,
    **metadata: Any,
) -> Path:
    """Write a network of transformers, with matrices of type `kind`, or F32 where their rows are no blocks of it. With
    `is_dequantized` they are rounded to that type, and F32 in the file. `tokenizer` is the directory of a byte-level
    tokenizer (default: weft-tiny's). `part_size`: the file is written in parts of at most as many tensors. `metadata`
    are further keys, with "__" for dots."""
    config = network.config
    name = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(file, name, split_max_tensors=part_size)
    add_sizes(writer, config)
    add_tokenizer(writer, tokenizer or package_model_path(), config.vocab_size)
    for key, value in metadata.items():
        add(writer, key.replace("__", "."), value)
    for tensor, rows in tensors(network.state_dict(), config, name):
        add_tensor(writer, tensor, rows, kind, is_dequantized)
    return finish(writer, file)


def finish(writer: Any, file: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add(writer: Any, key: str, value: Any) -> None:
    """Add a key with a value of the usual type for it, or replace its value."""
    if key in writer.kv_data[0]:
        writer.kv_data[0][key].value = value
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def add_tensor(writer: Any, name: str, rows: Tensor, kind: str, is_dequantized: bool = False) -> None:
    number, plain = gguf.GGMLQuantizationType[kind], gguf.GGMLQuantizationType.F32
    if rows.ndim < 2 or "ffn_gate_inp" in name or rows.shape[-1] % gguf.GGML_QUANT_SIZES[number][0]:
        number = plain
    data = rows.detach().float().contiguous().numpy()
    if number.name in SCALES:
        data = random_blocks(number, data.shape, len(name))
    else:
        data = gguf.quants.quantize(data, number)
    if is_dequantized:
        data, number = gguf.quants.dequantize(data, number), plain
    writer.add_tensor(name, data, raw_dtype=number)


SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}
"""The types that the package gguf does not make, with the places of the float16 scales in a block."""


def random_blocks(number: Any, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Random blocks for a tensor of this shape."""
    inputs, size = gguf.GGML_QUANT_SIZES[number]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (math.prod(shape) // inputs, size), np.uint8)
    for place in SCALES[number.name]:
        scales = rng.uniform(1e-4, 2e-3, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    if number.name == "MXFP4":
        blocks[:, 0] = rng.integers(122, 126, len(blocks))
    return blocks.reshape(*shape[:-1], -1)


def add_sizes(writer: Any, config: Any) -> None:
    """Add what a file says about a config."""
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        scale = config.max_position_embeddings / rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(rope["original_max_position_embeddings"]))
        )
    if config.model_type in WINDOWED and getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if config.model_type == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    for key, names in MORE.items():
        value = next((v for n in names if (v := getattr(config, n, None)) is not None), None)
        if value is not None:
            getattr(writer, f"add_{key}")(value)


MORE = {
    "expert_count": ("num_local_experts", "num_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention_scale": ("attention_multiplier",),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "logit_scale": ("logits_scaling",),
}
"""Methods of the writer, and keys of configs."""


def tensors(state: Mapping[str, Tensor], config: Any, architecture: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file."""
    kind = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in ADJACENT and name.split(".")[-2] in heads:
            count = heads[name.split(".")[-2]]
            tensor = tensor.unflatten(0, (count, 2, -1)).transpose(1, 2).reshape(tensor.shape)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        for part, rows in _parts(name, tensor, architecture):
            found = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert found is not None, part
            yield found, rows
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        for name, key in (("long", "long_factor"), ("short", "short_factor")):
            yield f"rope_factors_{name}.weight", torch.tensor(rope[key])
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(config)


def llama3_factors(config: Any) -> Tensor:
    """Llama 3's scaling as a file has it: the unscaled frequencies divided by the scaled ones."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    size = 2 * len(scaled)
    plain = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    return plain / scaled


def _parts(name: str, tensor: Tensor, architecture: str) -> Iterator[tuple[str, Tensor]]:
    """A tensor of transformers as the tensors of a file: the experts' gates and ups are apart there."""
    base, _, last = name.rpartition(".")
    is_bias = last.endswith("_bias")
    end = ".bias" if is_bias else ".weight"
    if name.endswith("sinks"):
        yield f"{name}.weight", tensor
    elif not base.endswith("experts"):
        yield name, tensor.squeeze(0) if "shared_expert_gate" in name else tensor
    elif last.startswith("down_proj"):
        yield f"{base}.down_proj{end}", tensor if architecture != "gpt-oss" or is_bias else tensor.mT
    elif architecture == "gpt-oss":
        both = tensor if is_bias else tensor.mT
        yield f"{base}.gate_proj{end}", both[:, ::2]
        yield f"{base}.up_proj{end}", both[:, 1::2]
    else:
        gates, ups = tensor.chunk(2, 1)
        yield f"{base}.gate_proj{end}", gates
        yield f"{base}.up_proj{end}", ups
