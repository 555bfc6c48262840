"""Makes the config.json that belongs to a GGUF file, from its metadata."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from weft.errors import ModelError
from weft.models.gguf.header import Header
from weft.models.gguf.metadata import Metadata
from weft.models.gguf.names import EMBEDDING, OUTPUT, family_of
from weft.models.rope import FULL, ORIGINAL, SLIDING

DEFAULT_THETA = 10000.0
MAX_POSITIONS = 1 << 24
"""The largest number of positions that a file may claim. Published models have 10 million at most."""
GEMMA2_27B, GEMMA3_27B = 46, 62
"""The numbers of layers of the two Gemmas whose attention scores have another factor. Files lack it."""

Config = dict[str, Any]
_OF_LAYER = re.compile(r"blk\.\d{1,6}\.")
"""The beginning of the name of a layer's tensor."""


def config_json(header: Header) -> Config:
    """Make the contents of config.json. Raises `ModelError` for an architecture, or a part of one, that weft does not
    read."""
    family, fields = family_of(header), Metadata(header)
    if EMBEDDING not in header.tensors:
        raise ModelError(f"{header.file}: has no tensor {EMBEDDING!r}")
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden // max(heads, 1))
    if fields.size("attention.value_length", head_dim) != head_dim:
        raise ModelError(f"{header.file}: its keys and values differ in size; weft runs equal ones")
    positions = fields.size("context_length")
    if positions > MAX_POSITIONS:
        raise ModelError(f"{header.file}: claims {positions} positions; it is damaged, get it again")
    num_layers = fields.size("block_count")
    found = 1 + max((int(name.split(".")[1]) for name in header.tensors if _OF_LAYER.match(name)), default=-1)
    if num_layers != found:
        raise ModelError(
            f"{header.file}: claims {num_layers} layers, and has tensors of {found}; it is damaged, get it again"
        )
    config = {
        "architectures": [family.name],
        "model_type": family.model_type,
        "dtype": _dtype(header),
        "vocab_size": header.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": _inner(fields),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": positions,
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": fields.number("rope.freq_base", DEFAULT_THETA),
        "tie_word_embeddings": OUTPUT not in header.tensors,
        **{f"{name}_token_id": fields.get(f"tokenizer.ggml.{key}_token_id", int) for name, key in _TOKENS},
    }
    config |= {"rope_scaling": _scaling(header, fields, config)}
    return config | _BY_ARCHITECTURE.get(fields.architecture, _plain)(fields, config)


_TOKENS = ("bos", "bos"), ("eos", "eos"), ("pad", "padding")


def _dtype(header: Header) -> str:
    """The dtype of activations on CUDA: that of dense weights, else bfloat16."""
    kinds = {entry.kind.name for entry in header.tensors.values() if len(entry.shape) > 1}
    if kinds <= {"F32"}:
        return "float32"
    return "float16" if kinds <= {"F32", "F16"} else "bfloat16"


def _inner(fields: Metadata) -> int:
    """The hidden size of MLPs, or of experts in a model that has nothing else."""
    expert = fields.size("expert_feed_forward_length", 0)
    return fields.size("feed_forward_length", expert or None)


def _scaling(header: Header, fields: Metadata, config: Config) -> Config | None:
    """The scaling of the rotary embedding, as `rope_scaling`; None for none."""
    rotated = fields.size("rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"] and fields.architecture != "phi3":
        raise ModelError(
            f"{fields.where}: its rotary embedding covers {rotated} of {config['head_dim']} numbers of a head; weft "
            f"runs whole ones in a {fields.architecture!r}"
        )
    original = fields.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    long, short = (f"rope_factors_{name}.weight" for name in ("long", "short"))
    if long in header.tensors and short in header.tensors:
        return _factors(header.floats(short), header.floats(long), original) | {
            "attention_factor": fields.number("rope.scaling.attn_factor", 1.0)
        }
    if "rope_freqs.weight" in header.tensors:  # Llama 3: files have the factors that its scaling leads to
        factors = header.floats("rope_freqs.weight")
        return _factors(factors, factors, original) | {"attention_factor": 1.0}
    key = f"{fields.architecture}.rope.scaling.type"
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear"))
    kind = fields.get(key, str, "none" if factor is None else "linear")
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        return {"rope_type": kind, "factor": factor, ORIGINAL: original, **_yarn(fields)}
    raise ModelError(f"{fields.where}: {key!r} is {kind!r}; weft reads 'none', 'linear' and 'yarn'")


def _factors(short: list[float], long: list[float], original: int) -> Config:
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long, ORIGINAL: original}


def _yarn(fields: Metadata) -> Config:
    """The parameters of YaRN that a file has."""
    found = {
        "beta_fast": fields.number("rope.scaling.yarn_beta_fast"),
        "beta_slow": fields.number("rope.scaling.yarn_beta_slow"),
        "attention_factor": fields.number("rope.scaling.yarn_attn_factor"),
    }
    if fields.number("rope.scaling.yarn_log_multiplier"):
        found |= {"mscale": 1.0, "mscale_all_dim": fields.number("rope.scaling.yarn_log_multiplier")}
    return {key: value for key, value in found.items() if value is not None}


def _plain(fields: Metadata, config: Config) -> Config:
    return {}


def _llama(fields: Metadata, config: Config) -> Config:
    """Llama, and with experts Mixtral. Mistral's files are those of a Llama."""
    if not fields.size("expert_count", 0):
        return {}
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
    }


def _qwen_moe(fields: Metadata, config: Config) -> Config:
    is_old = fields.architecture == "qwen2moe"
    keys = {
        "num_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        "moe_intermediate_size": fields.size("expert_feed_forward_length"),
        "norm_topk_prob": fields.get(f"{fields.architecture}.expert_weights_norm", bool, not is_old),
    }
    if is_old:
        keys["shared_expert_intermediate_size"] = fields.size(
            "expert_shared_feed_forward_length", config["intermediate_size"]
        )
    return keys


def _gemma2(fields: Metadata, config: Config) -> Config:
    return {
        **_gemma(config, GEMMA2_27B),
        **_windows(fields, config, 2),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
    }


def _gemma3(fields: Metadata, config: Config) -> Config:
    return {
        **_gemma(config, GEMMA3_27B),
        **_windows(fields, config, 6),
        "final_logit_softcapping": fields.number("final_logit_softcapping"),
        "rope_local_base_freq": fields.number("rope.freq_base_swa", DEFAULT_THETA),
    }


def _gemma(config: Config, layers_of_27b: int) -> Config:
    size = config["head_dim"]
    if config["num_hidden_layers"] == layers_of_27b:
        size = config["hidden_size"] // max(config["num_attention_heads"], 1)
    return {"query_pre_attn_scalar": size}


def _phi3(fields: Metadata, config: Config) -> Config:
    window = fields.size("attention.sliding_window", 0)
    return {
        "partial_rotary_factor": fields.size("rope.dimension_count", config["head_dim"]) / config["head_dim"],
        "sliding_window": window or None,
    }


def _granite(fields: Metadata, config: Config) -> Config:
    return {
        "attention_multiplier": fields.number("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": fields.number("embedding_scale", 1.0),
        "residual_multiplier": fields.number("residual_scale", 1.0),
        "logits_scaling": fields.number("logit_scale", 1.0),
    }


def _olmo2(fields: Metadata, config: Config) -> Config:
    """OLMo 2, and with windows OLMo 3."""
    if not fields.size("attention.sliding_window", 0):
        return {}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        **_windows(fields, config, 4),
        "rope_local_base_freq": config["rope_theta"],
    }


def _gpt_oss(fields: Metadata, config: Config) -> Config:
    scaling = config["rope_scaling"]
    keys = {
        "intermediate_size": fields.size("expert_feed_forward_length"),
        "num_local_experts": fields.size("expert_count"),
        "num_experts_per_tok": fields.size("expert_used_count"),
        **_windows(fields, config, 2),
    }
    # The models were trained with bounds that are no whole pairs. Files lack this.
    return keys | ({"rope_scaling": {**scaling, "truncate": False}} if scaling else {})


def _windows(fields: Metadata, config: Config, full_every: int) -> Config:
    """The attention window, and the layers that have it: by default all but each layer of the number `full_every`."""
    window, count = fields.size("attention.sliding_window", 0), config["num_hidden_layers"]
    key = f"{fields.architecture}.attention.sliding_window_pattern"
    if not window:
        slides = [False] * min(count, 1 << 16)
    elif fields.is_listed(key):
        slides = fields.listed(key, bool)
    else:
        period = max(fields.get(key, int, full_every), 1)
        slides = [(layer + 1) % period > 0 for layer in range(min(count, 1 << 16))]
    return {"sliding_window": window or None, "layer_types": [SLIDING if each else FULL for each in slides]}


_BY_ARCHITECTURE: dict[str, Callable[[Metadata, Config], Config]] = {
    "llama": _llama,
    "qwen2moe": _qwen_moe,
    "qwen3moe": _qwen_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "granite": _granite,
    "olmo2": _olmo2,
    "gpt-oss": _gpt_oss,
}
"""The keys that an architecture adds to those of Llama, or has in their place."""
