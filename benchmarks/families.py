"""Compares weft's modules with transformers' code over weft's operations, for random models of several families.

    .venv/bin/python benchmarks/families.py [--families gemma2,mixtral] [--rounds 3] [--out benchmarks/results]

Each family has a tiny model and one of some 100 million parameters. The two engines take turns, and a row has the best
rate of each: tokens per second of greedy answers from `batch` prompts. `ratio` is weft's rate ÷ that of transformers'
code.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, AutoModelForCausalLM

from generic import make, rate
from weft.config import package_model_path
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report

BATCHES = (1, 8)
COMMON: dict[str, Any] = {
    "vocab_size": json.loads((package_model_path() / "config.json").read_text())["vocab_size"],
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "100m": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "q_lora_rank": 256,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
}
FAMILIES = (
    *(
        "llama",
        "gemma2",
        "gemma3_text",
        "phi3",
        "smollm3",
        "olmo2",
        "granite",
        "mixtral",
        "qwen3_moe",
        "gpt_oss",
    ),
    *("deepseek_v3", "qwen3_next", "qwen3_5_text"),
)


MIXTURES = ("mixtral", "gpt_oss")
"""Families whose `intermediate_size` is that of an expert."""


def save(family: str, size: str, directory: Path) -> int:
    """Save a random model in bfloat16. Returns its number of parameters."""
    config = AutoConfig.for_model(family)
    known = {*config.to_dict(), *config.attribute_map}
    settings = {key: value for key, value in {**COMMON, **SIZES[size]}.items() if key in known}
    if family in MIXTURES:
        settings["intermediate_size"] = SIZES[size]["moe_intermediate_size"]
    if "kv_lora_rank" in known:
        settings["num_key_value_heads"] = settings["num_attention_heads"]
        settings["head_dim"] = settings["qk_rope_head_dim"]
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(type(config)(**settings), dtype=torch.bfloat16)
    network.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package_model_path() / name, directory)
    return sum(parameter.numel() for parameter in network.parameters())


def run(families: list[str], rounds: int) -> Report:
    """Return a row for each family, size and batch."""
    rows: list[dict[str, Any]] = []
    for family in families:
        for size in SIZES:
            with tempfile.TemporaryDirectory() as directory:
                parameters = save(family, size, Path(directory))
                with make(Path(directory), False) as own, make(Path(directory), True) as generic:
                    for batch in BATCHES:
                        rates = [(rate(own, batch), rate(generic, batch)) for _ in range(rounds + 1)][1:]
                        ours, theirs = (max(each) for each in zip(*rates, strict=True))
                        row = {"family": family, "size": size, "parameters": parameters, "batch": batch}
                        rows.append({**row, "weft": ours, "transformers": theirs, "ratio": ours / theirs})
    return Report("families", rows, {"rounds": rounds})


def main(
    families: Annotated[str, typer.Option(help="Model types, separated by commas.")] = ",".join(FAMILIES),
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 3,
    out: OutOption = None,
) -> None:
    """Compare weft's modules with transformers' code over weft's operations, for random models."""
    finish(measured(out, lambda: run(families.split(","), rounds)), out)


if __name__ == "__main__":
    script(main)
