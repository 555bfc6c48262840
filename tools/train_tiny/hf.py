"""Hugging Face directories: tensors are stored in float16 and read as float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from config import BOS, EOS, PAD, LlamaConfig
from model import Llama
from safetensors.torch import load_file, save_file
from torch import Tensor


def llama_config(c: LlamaConfig) -> dict[str, Any]:
    """Return config.json of a Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": c.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def save_tensors(state: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file: floating tensors in float16, others unchanged."""
    halved = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in state.items()}
    save_file(halved, path, metadata={"format": "pt"})
    path.chmod(0o644)


def save_llama(model: Llama, config: LlamaConfig, directory: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", llama_config(config))
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    write_json(directory / "generation_config.json", {**ends, "do_sample": False, "max_new_tokens": 256})
    save_tensors(model.hf_state(), directory / "model.safetensors")


def load_llama(directory: Path, config: LlamaConfig) -> Llama:
    """Load a Llama in float32, frozen."""
    model = Llama(config)
    tensors = load_file(directory / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    return model.eval().requires_grad_(False)


def trainable(start: Path | None, config: LlamaConfig) -> Llama:
    """Return a Llama to train, loaded from `start` or new."""
    return Llama(config) if start is None else load_llama(start, config).train().requires_grad_()
