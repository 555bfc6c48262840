"""Qwen3-Next and Qwen3.5: parts that other tests lack, configs that weft's modules refuse, forms of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from support.families import HYBRIDS, config_of, save
from weft.errors import ModelError
from weft.models.architectures import parse_config
from weft.models.base import Model, PagedKV
from weft.models.in_memory import model_in_memory
from weft.models.loading import load_model
from weft.ops.attention import Rows

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "partial_rotary_factor": 0.5,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "MLPs in some layers": ("qwen3_next", {"mlp_only_layers": [0], "decoder_sparse_step": 2}),
    "a wide shared expert": ("qwen3_next", {"shared_expert_intermediate_size": 72}),
    "experts with weights as they are": ("qwen3_next", {"norm_topk_prob": False}),
    "biases of attention": ("qwen3_next", {"attention_bias": True}),
    "a key head for each value head": ("qwen3_next", {"linear_num_key_heads": 4}),
    "three taps": ("qwen3_next", {"linear_conv_kernel_dim": 3}),
    "another rotation": ("qwen3_next", {"rope_parameters": YARN}),
    "shared embeddings": ("qwen3_5_text", {"tie_word_embeddings": True}),
    "equal heads": ("qwen3_5_text", {"linear_num_key_heads": 4, "linear_value_head_dim": 8}),
    "a wide shared expert of Qwen3.5": ("qwen3_5_moe_text", {"shared_expert_intermediate_size": 48}),
}


def logits_of(model: Model, tokens: Tensor) -> Tensor:
    """The logits of texts [2, L], read in parts."""
    kv = PagedKV.for_model(model, 11, 4, num_slots=2)
    assert kv.states is not None
    table, slots, parts = torch.randperm(10).view(2, 5).int() + 1, torch.arange(2), []
    with torch.inference_mode():
        for start, stop in ((0, 9), (9, 10), (10, 20)):
            states = kv.states.rows(slots, 0)
            rows = Rows(table, torch.full((2,), start), stop - start, states=states)
            parts.append(model.logits(model.forward(tokens[:, start:stop], kv, rows).last))
    return torch.cat(parts, 1)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    network = save(family, {**HYBRIDS[family], **changes}, tmp_path)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    network.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert not model.config.why_generic
    tokens = torch.randint(0, model.config.vocab_size, (2, 20))
    with torch.inference_mode():
        wanted = network(tokens).logits
    torch.testing.assert_close(logits_of(model, tokens), wanted, atol=2e-4, rtol=2e-4)


def test_without_layer_types_each_interval_ends_with_attention(tmp_path: Path) -> None:
    save("qwen3_next", HYBRIDS["qwen3_next"], tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    del data["layer_types"]
    for interval, attentive in ((None, [3]), (2, [1, 3]), (3, [2])):
        config = parse_config({**data, "full_attention_interval": interval}, "config.json")[1]
        assert [i for i, memory in enumerate(config.memories) if memory.pages is not None] == attentive


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen3_next", {"shared_expert_intermediate_size": 30}, "'shared_expert_intermediate_size' is 30"),
        ("qwen3_5_text", {"attn_output_gate": False}, "'attn_output_gate' is False"),
        ("qwen3_5_text", {"output_gate_type": "sigmoid"}, "'output_gate_type' is 'sigmoid'"),
    ],
)
def test_other_values_run_by_transformers_code(family: str, changes: dict[str, Any], reason: str) -> None:
    network = config_of(family, HYBRIDS[family])
    name = transformers.AutoModelForCausalLM._model_mapping[type(network)].__name__
    data = {**network.to_dict(), "architectures": [name]}
    assert parse_config(data, "config.json")[1].why_generic == ""
    assert reason in parse_config({**data, **changes}, "config.json")[1].why_generic


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["linear_attention"] * 3},
            "'layer_types' is .*; it must name one of linear_attention, full",
        ),
        ({"layer_types": "full_attention"}, "'layer_types' is 'full_attention'; it must name"),
        ({"layer_types": [["full_attention"]] * 4}, "'layer_types' is"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "'layer_types' is"),
        ({"linear_num_key_heads": 3}, "'linear_num_key_heads' is 3; it must divide the 4 value heads"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; weft runs 'silu' or 'swish'"),
        ({"linear_conv_kernel_dim": 0}, "'linear_conv_kernel_dim' is 0"),
    ],
)
def test_values_that_neither_way_runs_are_refused(changes: dict[str, Any], message: str) -> None:
    data = config_of("qwen3_next", HYBRIDS["qwen3_next"]).to_dict()
    data |= {"architectures": ["Qwen3NextForCausalLM"], **changes}
    with pytest.raises(ModelError, match=message):
        parse_config(data, "config.json")


def fuse_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the matrices of all experts, as Qwen3.5's checkpoints do."""
    found = [name.removesuffix("0.gate_proj.weight") for name in tensors if ".experts.0.gate_proj" in name]
    for prefix in found:
        experts: list[dict[str, Tensor]] = []
        while f"{prefix}{len(experts)}.gate_proj.weight" in tensors:
            names = {part: f"{prefix}{len(experts)}.{part}_proj.weight" for part in ("gate", "up", "down")}
            experts.append({part: tensors.pop(name) for part, name in names.items()})
        tensors[f"{prefix}gate_up_proj"] = torch.stack([torch.cat((e["gate"], e["up"])) for e in experts])
        tensors[f"{prefix}down_proj"] = torch.stack([e["down"] for e in experts])
    assert found
    return tensors


def rename(tensors: dict[str, Tensor], start: str) -> dict[str, Tensor]:
    return {
        f"{start}{name.removeprefix('model.')}" if name.startswith("model.") else name: t
        for name, t in tensors.items()
    }


FORMS: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "tensors of all experts": fuse_experts,
    "names of a model with images": lambda tensors: rename(tensors, "model.language_model."),
    "parts that have no use": lambda tensors: {
        **tensors,
        "mtp.fc.weight": torch.zeros(2, 2),
        "model.visual.pos_embed.weight": torch.zeros(3),
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_may_have_other_forms(form: str, tmp_path: Path) -> None:
    save("qwen3_5_moe_text", HYBRIDS["qwen3_5_moe_text"], tmp_path)
    model = load_model(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    other = model_in_memory(FORMS[form](load_file(tmp_path / "model.safetensors")), data)
    tokens = torch.randint(0, model.config.vocab_size, (2, 20))
    assert torch.equal(logits_of(other, tokens), logits_of(model, tokens))


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    save("qwen3_5_text", HYBRIDS["qwen3_5_text"], tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.linear_attn.conv1d.bias"] = torch.zeros(80)
    with pytest.raises(ModelError, match=r"unexpected tensors 'model\.layers\.0\.linear_attn\.conv1d\.bias'"):
        model_in_memory(tensors, data)
