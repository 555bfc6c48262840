"""Architectures of GGUF files that weft reads: their classes in transformers, and the names of their tensors there.

The files name tensors of all architectures alike; checkpoints in safetensors do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import ModelError
from weft.models.gguf.header import Entry, Header

EMBEDDING, OUTPUT_NORM, OUTPUT = "token_embd.weight", "output_norm.weight", "output.weight"
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""The tensors that belong to the config: factors of the rotation's frequencies."""

DENSE = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
"""Kinds of tensors whose numbers are stored one by one, named as in safetensors."""
QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
"""Kinds of tensors in blocks that weft reads."""

_OUTSIDE = {
    EMBEDDING: "model.embed_tokens.weight",
    OUTPUT_NORM: "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LLAMA = {**_ATTENTION, **_MLP}
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA2 = {**_LLAMA, "ffn_norm": "pre_feedforward_layernorm", **_NORMS_AFTER}
_OLMO2 = {**{key: name for key, name in _LLAMA.items() if not key.endswith("_norm")}, **_NORMS_AFTER} | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_ROUTED = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_QWEN_MOE = {**_LLAMA, **_ROUTED}
_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
_GPT_OSS = {
    **_ATTENTION,
    **_ROUTED,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.router",
    "attn_sinks": "self_attn.sinks",
}
_FUSED_MLP = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}


@dataclass(frozen=True)
class Family:
    """An architecture: transformers' class and its `model_type`.

    names: of a layer's tensors in a file and in a checkpoint, without ".weight" and ".bias". "{}" is the number of an
        expert: a file stacks the experts' matrices.
    adjacent_pairs: rows of queries and keys are stored so that elements 2i and 2i + 1 of a head are rotated together.
    """

    name: str
    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: _LLAMA, repr=False)
    adjacent_pairs: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "llama", {**_LLAMA, **_MIXTRAL}, adjacent_pairs=True),
    "qwen2": Family("Qwen2ForCausalLM", "qwen2"),
    "qwen2moe": Family("Qwen2MoeForCausalLM", "qwen2_moe", {**_QWEN_MOE, **_SHARED}),
    "qwen3": Family("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": Family("Qwen3MoeForCausalLM", "qwen3_moe", _QWEN_MOE),
    "gemma": Family("GemmaForCausalLM", "gemma"),
    "gemma2": Family("Gemma2ForCausalLM", "gemma2", _GEMMA2),
    "gemma3": Family("Gemma3ForCausalLM", "gemma3_text", _GEMMA2),
    "phi3": Family("Phi3ForCausalLM", "phi3", {**_ATTENTION, **_FUSED_MLP}),
    "granite": Family("GraniteForCausalLM", "granite", adjacent_pairs=True),
    "olmo2": Family("Olmo2ForCausalLM", "olmo2", _OLMO2),
    "smollm3": Family("SmolLM3ForCausalLM", "smollm3", adjacent_pairs=True),
    "gpt-oss": Family("GptOssForCausalLM", "gpt_oss", _GPT_OSS),
}
"""The architectures that weft reads, by their names in GGUF."""


class NamedEntry(NamedTuple):
    """A tensor by its name in a checkpoint: its file, its kind, its shape, and the place of its bytes in the file."""

    file: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def family_of(header: Header) -> Family:
    """The architecture of a file. Raises `ModelError` for one that weft does not read."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{header.file}: has no text 'general.architecture'")
    if name not in FAMILIES:
        raise ModelError(
            f"{header.file}: holds a {name!r}; weft reads GGUF files of {', '.join(FAMILIES)}. Other models can run "
            "from their safetensors: give the directory of the original checkpoint"
        )
    return FAMILIES[name]


def named_entries(header: Header) -> Iterator[NamedEntry]:
    """The tensors of a file by their names in a checkpoint, those of experts one by one. A tensor that the architecture
    has no place for keeps its name. Raises `ModelError` for kinds that weft does not read."""
    family = family_of(header)
    for entry in header.tensors.values():
        if entry.name in ROPE_FACTORS:
            continue
        if entry.kind.name not in (*DENSE, *QUANTIZED):
            raise ModelError(
                f"{entry.file}: tensor {entry.name!r} is quantised with {entry.kind.name}; use a file in Q4_K_M, "
                "Q5_K_M, Q6_K or Q8_0"
            )
        yield from _places(entry, _name(entry.name, family))


def switches(header: Header) -> dict[str, Any]:
    """The fields of `ModelConfig` that a file decides, whatever its config.json says. Norms in files have their final
    weights."""
    tensors = header.tensors
    return {
        "adjacent_pairs": family_of(header).adjacent_pairs,
        "norm_offset": 0.0,
        "fused_qkv": "blk.0.attn_qkv.weight" in tensors,
        "fused_gate_up": "blk.0.ffn_up.weight" in tensors and "blk.0.ffn_gate.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors or "blk.0.attn_qkv.bias" in tensors,
        "output_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "tie_word_embeddings": OUTPUT not in tensors,
        "num_mtp_modules": 0,
        "keeps_formats": True,
    }


def _name(name: str, family: Family) -> str:
    """The name of a tensor in a checkpoint, or its own."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    block, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    base, _, end = rest.partition(".")
    found = family.names.get(base)
    if block != "blk" or not layer.isdecimal() or found is None or end not in ("weight", "bias"):
        return name
    if found.endswith("sinks"):  # they are no weights of a module
        return f"model.layers.{int(layer)}.{found}"
    return f"model.layers.{int(layer)}.{found}.{end}"


def _places(entry: Entry, name: str) -> Iterator[NamedEntry]:
    shape, kind, begin = entry.shape, entry.kind.name, entry.begin
    if "{}" in name and name.endswith(".bias"):  # a row for each expert
        name = f"{name.replace('.{}', '').removesuffix('.bias')}_bias"
    elif "{}" in name and len(shape) == 3:
        size = (entry.end - begin) // max(shape[0], 1)
        for expert in range(shape[0]):
            start = begin + expert * size
            yield NamedEntry(entry.file, name.format(expert), kind, shape[1:], start, start + size)
        return
    elif name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        shape = (1, *shape)
    yield NamedEntry(entry.file, name, kind, shape, begin, entry.end)
