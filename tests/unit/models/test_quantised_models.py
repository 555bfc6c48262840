"""Quantised checkpoints as models: their logits are those of transformers with the numbers of the description."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.families import save, small_settings
from support.quantised import CASES, Case, quantise
from weft.client.model_facts import ModelFacts, weights_line
from weft.models.base import Model, PagedKV
from weft.models.loading import load_model
from weft.models.stored import count_parameters
from weft.ops.attention import Rows
from weft.ops.formats import Format

SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_experts": 3,
    "num_local_experts": 3,
    "n_routed_experts": 3,
}
LATENT = {"q_lora_rank": 128, "kv_lora_rank": 128, "v_head_dim": 32, "qk_nope_head_dim": 24, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "phi3": {},
    "qwen3_moe": {},
    "deepseek_v3": LATENT,
}
KEPT = re.compile(r"(mlp\.gate|lm_head|embed_tokens)$")
"""Modules that stay in floating point."""
PAIRS = [
    ("llama", "awq-128"),
    ("llama", "gptq-64-plain"),
    ("llama", "gptq-mixed"),
    ("llama", "gptq-8"),
    ("llama", "fp8-blocks"),
    ("llama", "fp8-compressed-channel"),
    ("llama", "int8-channel"),
    ("llama", "packed-128"),
    ("qwen3", "fp8-blocks-bf16"),
    ("phi3", "awq-64"),
    ("phi3", "packed-mixed"),
    ("qwen3_moe", "gptq-128"),
    ("qwen3_moe", "gptq-mixed"),
    ("qwen3_moe", "fp8-blocks"),
    ("deepseek_v3", "fp8-blocks"),
    ("deepseek_v3", "packed-32-zeros"),
    ("deepseek_v3", "packed-mixed"),
]
EXACT = [
    pair for pair in PAIRS if not pair[1].endswith("mixed") and pair != ("deepseek_v3", "packed-32-zeros")
]
"""Those whose inputs are added in order, and whose numbers that must not be in blocks are not rounded to 16 bits."""


def write(family: str, case: Case, directory: Path) -> Any:
    """Write a quantised checkpoint, and return transformers' model of its numbers."""
    dense = directory / "dense"
    save(family, {**small_settings(family), **SIZES, **FAMILIES[family]}, dense)
    torch.manual_seed(1)
    tensors = load_file(dense / "model.safetensors")
    stored = dict(tensors)
    for name, parts, numbers in quantise(case, tensors, lambda module: not KEPT.search(module)):
        del stored[name]
        stored |= parts
        tensors[name] = numbers
    assert len(stored) > len(tensors)
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, directory / "model.safetensors")
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    config = json.loads((dense / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": case.settings}))
    return transformers.AutoModelForCausalLM.from_pretrained(
        dense, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@torch.inference_mode()
def logits(model: Model, tokens: Tensor) -> Tensor:
    """The logits of a text that is read in two parts."""
    kv = PagedKV.for_model(model, 1 + -(-len(tokens) // 4), 4)
    table = torch.arange(1, kv.num_pages, dtype=torch.int32)[None]
    parts = []
    for begin, end in ((0, 13), (13, len(tokens))):
        rows = Rows(table, torch.tensor([begin]), end - begin)
        parts.append(model.logits(model.forward(tokens[None, begin:end], kv, rows).last)[0])
    return torch.cat(parts)


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_dequantised_logits_are_those_of_transformers(family: str, name: str, tmp_path: Path) -> None:
    oracle = write(family, CASES[name], tmp_path)
    model = load_model(tmp_path, dtype="float32")
    assert model.config.why_generic == ""
    tokens = torch.randint(90, (30,))
    with torch.no_grad():
        wanted = oracle(tokens[None]).logits[0]
    limit = 1e-4 * float(wanted.abs().max())
    torch.testing.assert_close(logits(model, tokens), wanted, atol=limit, rtol=0)


@pytest.mark.parametrize(("family", "name"), EXACT)
def test_quantised_matrices_give_the_bits_of_their_numbers(family: str, name: str, tmp_path: Path) -> None:
    """With rows that are not rounded, products are those of the dequantised matrices."""
    write(family, CASES[name], tmp_path)
    tokens = torch.randint(90, (30,))
    quantised = load_model(tmp_path, activation_dtype="float32")
    dequantised = load_model(tmp_path, dtype="float32", activation_dtype="float32")
    assert torch.equal(logits(quantised, tokens), logits(dequantised, tokens))


@pytest.mark.parametrize("name", ["gptq-mixed", "gptq-8-mixed", "packed-mixed"])
def test_inputs_in_another_order_give_the_same_sums(name: str, tmp_path: Path) -> None:
    """But for the order in which they are added."""
    write("llama", CASES[name], tmp_path)
    tokens = torch.randint(90, (30,))
    quantised = logits(load_model(tmp_path, activation_dtype="float32"), tokens)
    dequantised = logits(load_model(tmp_path, dtype="float32", activation_dtype="float32"), tokens)
    limit = 1e-5 * float(dequantised.abs().max())
    torch.testing.assert_close(quantised, dequantised, atol=limit, rtol=0)
    assert torch.equal(quantised.argmax(1), dequantised.argmax(1))


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_rounded_rows_change_logits_little(family: str, name: str, tmp_path: Path) -> None:
    write(family, CASES[name], tmp_path)
    tokens = torch.randint(90, (30,))
    got, wanted = logits(load_model(tmp_path), tokens), logits(load_model(tmp_path, dtype="float32"), tokens)
    error = float((got - wanted).norm() / wanted.norm())
    assert error < 0.05, error


def test_facts_count_numbers_and_bytes(tmp_path: Path) -> None:
    write("qwen3_moe", CASES["gptq-mixed"], tmp_path)
    facts = ModelFacts.read(tmp_path, torch.device("cpu"))
    dense = ModelFacts.read(tmp_path / "dense", torch.device("cpu"))
    assert facts.headers.num_parameters == dense.headers.num_parameters == count_parameters(tmp_path)
    assert facts.weight_dtypes == "INT4_64 and float16 and float32"
    assert (
        "; 18 quantised matrices are dequantised: their groups have different sizes or no order"
        in weights_line(facts)
    )
    assert "no order" not in weights_line(dense)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("awq-128", Format.INT4_128), ("gptq-mixed", Format.INT4_64), ("packed-mixed", Format.INT4_32)],
)
def test_bytes_in_memory_are_those_of_blocks(name: str, kind: Format, tmp_path: Path) -> None:
    write("llama", CASES[name], tmp_path)
    facts = ModelFacts.read(tmp_path, torch.device("cpu"))
    dense = ModelFacts.read(tmp_path / "dense", torch.device("cpu"))
    in_layers = sum(
        tensor.numel()
        for name, tensor in load_file(tmp_path / "dense" / "model.safetensors").items()
        if tensor.dim() == 2 and not KEPT.search(name.removesuffix(".weight"))
    )
    of_blocks = in_layers // kind.block.inputs * kind.block.bytes
    assert dense.weight_bytes - facts.weight_bytes == 4 * in_layers - of_blocks
    assert facts.weight_dtypes == f"{kind.name} and float32"
    assert "no order" not in weights_line(facts)


def test_modelopts_settings_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    case = CASES["fp8-modelopt"]
    oracle = write("llama", case, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(settings))
    tokens = torch.randint(90, (30,))
    with torch.no_grad():
        wanted = oracle(tokens[None]).logits[0]
    limit = 1e-4 * float(wanted.abs().max())
    torch.testing.assert_close(
        logits(load_model(tmp_path, dtype="float32"), tokens), wanted, atol=limit, rtol=0
    )
    assert count_parameters(tmp_path) == count_parameters(tmp_path / "dense")
