"""Write the models as Hugging Face directories; tensors in float16, to be read as float32."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from config import ASSETS, BOS, EOS, PAD, TARGET
from model import Llama
from safetensors.torch import save_file
from torch import Tensor


def target_config() -> dict[str, Any]:
    """config.json of weft-tiny."""
    t = TARGET
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": t.vocab_size,
        "hidden_size": t.hidden_size,
        "intermediate_size": t.intermediate_size,
        "num_hidden_layers": t.num_layers,
        "num_attention_heads": t.num_heads,
        "num_key_value_heads": t.num_kv_heads,
        "head_dim": t.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": t.rms_norm_eps,
        "rope_theta": t.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": t.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Indented JSON with a final newline."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def save_tensors(state: dict[str, Tensor], path: Path) -> None:
    """A safetensors file: floating tensors in float16, the others as they are."""
    halved = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in state.items()}
    save_file(halved, path, metadata={"format": "pt"})
    path.chmod(0o644)


def save_target(model: Llama, directory: Path) -> None:
    """config.json, generation_config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", target_config())
    ends = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    write_json(directory / "generation_config.json", {**ends, "do_sample": False, "max_new_tokens": 256})
    save_tensors(model.hf_state(), directory / "model.safetensors")


if __name__ == "__main__":
    trained = Llama()
    trained.load_state_dict(torch.load(Path(sys.argv[1]) / "checkpoint.pt")["model"])
    save_target(trained, ASSETS)
