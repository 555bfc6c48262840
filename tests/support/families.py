"""Small random checkpoints of transformers' families.

Each family has the settings that make its parts appear in four layers: windows shorter than the texts, soft caps other
than the defaults, several experts, and layers of each kind.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from weft.config import package_model_path
from weft.models.generic.network import quiet
from weft.registry import MODELS

TINY = package_model_path()
VOCAB_SIZE: int = json.loads((TINY / "config.json").read_text())["vocab_size"]

BASE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 11,
    "tie_word_embeddings": False,
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
    "mamba_d_conv": 4,
}
GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "n_inner": 96}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + i / 4 for i in range(6)],
    "long_factor": [2.0 + i for i in range(6)],
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GEMMA3N = {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
MIXED = ["sliding_attention", "full_attention"] * 2
GEMMA4 = {**GEMMA3N, "layer_types": MIXED, "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}}}

CLASS = "class"
"""The key of a transformers class, if it is not the family's causal language model."""

SMALL: dict[str, Any] = {
    **BASE,
    **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder", "num_encoder", "num_decoder")},
    **{f"{part}_layers": 4 for part in ("encoder", "decoder", "num_encoder", "num_decoder")},
    **{key: LATENT[key] for key in ("q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")},
    "d_model": 64,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "hidden_size_per_layer_input": 8,
    "image_size": 32,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "max_window_layers": 4,
    "num_heads": 4,
    "num_kv_shared_layers": 2,
    "num_layers": 4,
    "v_head_dim": 8,
}
"""Sizes by key for a small network of any family."""


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "llama yarn": {"rope_parameters": YARN},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "apertus": {},
    "arcee": {},
    "biogpt": {},
    "cohere": {"logit_scale": 2.0},
    "cohere2": {"logit_scale": 2.0, "layer_types": MIXED},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 4,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 0.5},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2},
    },
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "deepseek_v3": {**LATENT, "n_group": 2, "n_shared_experts": 2},
    "dots1": {"first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_shared_experts": 1},
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 6, "moe_k": 2},
    "exaone4": {"layer_types": MIXED},
    "flex_olmo": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 40, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    "gemma3": {
        "text_config": {"query_pre_attn_scalar": 40, "layer_types": MIXED},
        "vision_config": VISION,
    },
    "gemma3_text": {"query_pre_attn_scalar": 40, "layer_types": MIXED},
    "gemma3n_text": {**GEMMA3N, "layer_types": MIXED},
    "gemma4": {"text_config": GEMMA4},
    "gemma4_text": GEMMA4,
    "glm": {},
    "glm4": {},
    "glm4_moe": {"first_k_dense_replace": 1},
    "glm4_moe_lite": {**LATENT, "mlp_layer_types": ["dense", "sparse", "sparse", "dense"]},
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neox": {},
    "gpt_oss": {"swiglu_limit": 0.5, "layer_types": MIXED},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "granitemoe": {},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {"moe_topk": 2},
    "longcat_flash": {
        **LATENT,
        "num_layers": 2,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 24,
        "moe_topk": 3,
        "zero_expert_num": 2,
    },
    "minicpm3": LATENT,
    "minimax_m2": {},
    "mixtral": {"sliding_window": None},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {"layer_types": MIXED},
    "olmoe": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "phi": {},
    "phi3": {},
    "phi3 longrope": {
        "sliding_window": None,
        "rope_parameters": LONGROPE,
        "original_max_position_embeddings": 256,
    },
    "phimoe": {},
    "qwen2_moe": {},
    "qwen3_moe": {},
    "seed_oss": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "youtu": LATENT,
}
"""Families without recurrent states."""

HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": DELTA,
    "qwen3_5": {
        "text_config": DELTA,
        "vision_config": {**VISION, "depth": 2, "num_heads": 4, "out_hidden_size": 64},
        CLASS: "Qwen3_5ForConditionalGeneration",
    },
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "olmo_hybrid": DELTA,
    "kimi_linear": {
        **{key: LATENT[key] for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")},
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "v_head_dim": 8,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "layer_types": DELTA["layer_types"],
    },
    "bailing_hybrid": {
        **{
            key: LATENT[key]
            for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        },
        "num_key_value_heads": 4,
        "v_head_dim": 8,
        "layer_types": DELTA["layer_types"],
    },
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 2},
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "mamba2": {"state_size": 12, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8, "expand": 2},
    "bamba": {**MAMBA2, "attn_layer_indices": [2]},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 128},
    "granitemoehybrid": {
        **MAMBA2,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 12,
        "n_groups": 2,
        "chunk_size": 8,
        "expand": 2,
        "layers_block_type": ["mamba", "moe", "attention", "mamba"],
        "moe_shared_expert_intermediate_size": 24,
        "moe_latent_size": None,
    },
    "jamba": {
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "zamba2": {
        "mamba_d_state": 12,
        "mamba_ngroups": 2,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "chunk_size": 8,
        "num_key_value_heads": 4,
        "attention_head_dim": 32,
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"],
        "num_mem_blocks": 1,
        "adapter_rank": 8,
    },
}
"""Families with recurrent states."""

OWN_CODE = "its layers have attention of their own"
KEEPS_MORE = "read in parts, texts have other logits than read whole"

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bert": ({}, "its attention is not causal"),
    "bloom": ({"n_layer": 4, "n_head": 4}, OWN_CODE),
    "codegen": ({**GPT2, "rotary_dim": 8}, OWN_CODE),
    "deepseek_v32": ({**LATENT, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8}, OWN_CODE),
    "falcon": ({"alibi": False}, OWN_CODE),
    "gpt_neo": ({"attention_types": [[["global", "local"], 2]], "window_size": 11}, OWN_CODE),
    "gptj": ({**GPT2, "rotary_dim": 8}, OWN_CODE),
    "inkling_text": ({}, "InklingAttention attends with position_bias, which weft does not know"),
    "jetmoe": ({}, "its code reads values of tensors, which a captured forward can't"),
    "llama4_text": ({}, "its attention mask depends on the tokens or on their number"),
    "minimax": ({}, KEEPS_MORE),
    "minimax_m3_vl_text": (
        {
            "layer_types": ["minimax_m3_sparse"] * 4,
            "index_head_dim": 16,
            "index_n_heads": 2,
            "index_block_size": 4,
        },
        "MiniMaxM3VLAttention attends with block_indices, which weft does not know",
    ),
    "mpt": ({"d_model": 64, "n_layers": 4, "n_heads": 4, "max_seq_len": 512}, OWN_CODE),
    "recurrent_gemma": (
        {"lru_width": 64, "attention_window_size": 64, "num_hidden_layers": 3},
        KEEPS_MORE,
    ),
    "rwkv": (
        {"attention_hidden_size": 64, "context_length": 256},
        "its code reads weights that weft keeps in another form",
    ),
}
"""Families that weft refuses, each with the beginning of the reason."""

OTHERS: dict[str, dict[str, Any]] = {
    "gemma4_unified_text": GEMMA4,
    "xlnet": {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 96, "n_layer": 4},
    "zaya": {"num_experts_per_tok": 1},
}
"""Settings of families that `small_settings` does not know."""

UNBUILT = (
    "blt",
    "cohere_compass_text",
    "dots3_note",
    "emu3",
    "gemma3n",
    "gemma4_assistant",
    "gemma4_unified",
    "gemma4_unified_assistant",
    "mllama",
    "musicgen",
    "musicgen_melody",
    "qwen4_exp",
    "qwen4_exp_text",
    "reformer",
)
"""Families of which `small_settings` makes no small network."""


def architecture_of(family: str) -> str:
    """transformers' class of a family of `FAMILIES` or `HYBRIDS`."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family.split(" ")[0]]
    settings = {**FAMILIES, **HYBRIDS}[family]
    return str(settings.get(CLASS, found if isinstance(found, str) else found[0]))


def own_families() -> list[str]:
    """The families of `FAMILIES` and `HYBRIDS` that weft's own modules run."""
    return [family for family in (*FAMILIES, *HYBRIDS) if architecture_of(family) in MODELS]


def small_settings(family: str) -> dict[str, Any]:
    """Settings that make a small network of most families, also of those whose network has an image encoder."""

    def small(data: dict[str, Any], keys: set[str]) -> dict[str, Any]:
        sizes = {**SMALL, "vocab_size_per_layer_input": VOCAB_SIZE}
        if "kv_lora_rank" in keys:
            sizes |= {"num_key_value_heads": 4, "head_dim": 8}
        if "linear_num_key_heads" in keys:
            sizes |= DELTA
        settings = {key: value for key, value in sizes.items() if key in keys}
        for key, value in data.items():
            if key.endswith("_config") and isinstance(value, dict) and "model_type" in value:
                nested = {**small(value, set(value)), "model_type": value["model_type"]}
                if "vocab_size" in value:
                    nested |= {"vocab_size": VOCAB_SIZE, "pad_token_id": 0}
                settings[key] = nested
        return settings

    config = AutoConfig.for_model(family)
    return small(config.to_dict(), {*config.to_dict(), *config.attribute_map})


def config_of(family: str, settings: dict[str, Any]) -> Any:
    """transformers' config of a family, with the small sizes of this file."""
    config = AutoConfig.for_model(family.split(" ")[0])
    known = {*config.to_dict(), *config.attribute_map}
    words = {"vocab_size": VOCAB_SIZE, "vocab_size_per_layer_input": VOCAB_SIZE}
    sizes = {**BASE, **words, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    given = {key: value for key, value in {**sizes, **settings}.items() if key in known or key in settings}
    if "text_config" in settings:
        given["text_config"] = {**sizes, **settings["text_config"]}
    if family == "mamba2":
        given.pop("num_attention_heads", None)
    given.pop(CLASS, None)
    return type(config)(**given)


def make_network(config: Any, seed: int = 0, spread: float = 3.0, name: str | None = None) -> Any:
    """A random network, of transformers' class `name` or of the family's causal language model. Larger weights than
    transformers' make its layers differ and its choices clear."""
    torch.manual_seed(seed)
    config = copy.deepcopy(config)
    if name is None:
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    else:
        network = getattr(transformers, name)._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(spread)
    return network


def save(family: str, settings: dict[str, Any], directory: Path) -> Any:
    """Save a random checkpoint of a family with weft-tiny's tokenizer. Returns transformers' network."""
    network = make_network(config_of(family, settings), name=settings.get(CLASS))
    with quiet():
        network.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (TINY / name).exists():
            shutil.copy(TINY / name, directory)
    return network


transformers.logging.set_verbosity_error()
