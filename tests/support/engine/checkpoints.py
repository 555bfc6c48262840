"""Small random checkpoints in Hugging Face's format, with weft-tiny's tokenizer, and random drafters for them: EAGLE3
heads, multi-token-prediction modules and draft models.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from weft.config import package_model_path

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)

MODEL_TYPES = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {"head_dim": 16}}


def save_checkpoint(path: Path, model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """Save a random checkpoint at `path`, and return the transformers model. Its weights are large, so that the best
    token is clear."""
    tiny = json.loads((package_model_path() / "config.json").read_text())
    config = AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": tiny["vocab_size"],
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "bos_token_id": tiny["bos_token_id"],
            "eos_token_id": tiny["eos_token_id"],
            "pad_token_id": tiny.get("pad_token_id"),
            "tie_word_embeddings": False,
            **MODEL_TYPES.get(model_type, {}),
            **overrides,
        },
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.08)
    model.save_pretrained(path)
    for name in TOKENIZER_FILES:
        source = package_model_path() / name
        if source.exists():
            shutil.copy(source, path / name)
    return model


def save_eagle3(
    path: Path, vocab_size: int, hidden: int, layers: int, seed: int = 1, draft_vocab: int = 500
) -> None:
    """Save a random EAGLE3 head. Its drafts are poor, which exercises rollback. Its draft vocabulary is a random
    subset."""
    torch.manual_seed(seed)
    heads, kv_heads, inner = 4, 2, 96
    size = hidden // heads
    kept = torch.randperm(vocab_size)[:draft_vocab].sort().values

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape) * 0.08

    tensors = {
        "d2t": kept - torch.arange(draft_vocab),
        "t2d": torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, kept, True),
        "fc.weight": weight(hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": weight(hidden, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": weight(kv_heads * size, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": weight(kv_heads * size, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": weight(hidden, hidden),
        "midlayer.mlp.gate_proj.weight": weight(inner, hidden),
        "midlayer.mlp.up_proj.weight": weight(inner, hidden),
        "midlayer.mlp.down_proj.weight": weight(hidden, inner),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "midlayer.post_attention_layernorm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": weight(draft_vocab, hidden),
    }
    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": vocab_size,
        "draft_vocab_size": draft_vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": [1, layers // 2, layers - 1],
    }
    (path / "config.json").write_text(json.dumps(config))


def save_mtp(path: Path, vocab_size: int, hidden: int, modules: int = 1, seed: int = 2) -> None:
    """Save random MTP modules in a directory: a single one, which is used recurrently, or a chain of several."""
    tensors = {}
    for module in range(modules):
        tensors.update(mtp_tensors(f"layers.{module}.", hidden, seed + module))
    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(mtp_config(vocab_size, hidden, modules)))


def mtp_config(vocab_size: int, hidden: int, modules: int) -> dict[str, Any]:
    """The config.json for a directory with only MTP modules."""
    return {
        "architectures": ["LlamaForCausalLMMTP"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "num_nextn_predict_layers": modules,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": vocab_size,
        "dtype": "float32",
    }


def mtp_tensors(prefix: str, hidden: int, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of one random module with the sizes of `mtp_config`."""
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    tensors = {
        "eh_proj.weight": weight(hidden, 2 * hidden),
        "self_attn.q_proj.weight": weight(hidden, hidden),
        "self_attn.k_proj.weight": weight(hidden // 2, hidden),
        "self_attn.v_proj.weight": weight(hidden // 2, hidden),
        "self_attn.o_proj.weight": weight(hidden, hidden),
        "mlp.gate_proj.weight": weight(96, hidden),
        "mlp.up_proj.weight": weight(96, hidden),
        "mlp.down_proj.weight": weight(hidden, 96),
    }
    for norm in ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm"):
        tensors[f"{norm}.weight"] = 1 + weight(hidden)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def save_draft_model(path: Path, seed: int = 3, **overrides: Any) -> Any:
    """Save a random draft model, smaller than `save_checkpoint`'s. Returns the transformers model."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "tie_word_embeddings": True}
    return save_checkpoint(path, "llama", seed, **{**sizes, **overrides})
