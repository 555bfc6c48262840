"""What every registered model keeps: transformers' numbers, and the rule of launched functions."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from support.engine.fake_weights import FakeWeights
from support.engine.windowed import mask_layers
from support.families import VISION
from support.launch_check import check_launched, cuda_device_guard
from weft.errors import ModelError
from weft.models.architectures import parse_config, read_config
from weft.models.base import Model, PagedKV
from weft.models.dtypes import with_dtype
from weft.models.in_memory import model_in_memory
from weft.models.loading import load_model
from weft.models.random_weights import RandomWeights
from weft.ops.attention import Rows, Window
from weft.ops.state_rows import StateRows
from weft.registry import MODELS, load

SIZES = {
    "vocab_size": 67,
    "hidden_size": 64,  # a square: the factor of Gemma's embeddings is its root, which 16 bits hold
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    # Of mixtures of experts, latent attention and the gated delta rule.
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

REQUIRED = (
    *("architectures", "dtype", "model_type"),
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
)
"""Keys that each config.json has."""

FILLED = {"DeepseekV2ForCausalLM": {"num_experts_per_tok": 6}}
"""Values of keys that have none in transformers' config, and that models need."""

HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
LATENT = {"num_key_value_heads": 4, "head_dim": 4}
"""The heads of latent attention; `head_dim` is that of `qk_rope_head_dim`."""

CHANGES: dict[str, dict[str, Any]] = {
    "Gemma3ForConditionalGeneration": {"vision_config": VISION},
    "DeepseekV2ForCausalLM": {**LATENT, "topk_method": "group_limited_greedy"},
    "DeepseekV3ForCausalLM": LATENT,
    "Glm4MoeLiteForCausalLM": LATENT,
    "MiniCPM3ForCausalLM": LATENT,
    "YoutuForCausalLM": LATENT,
    "Qwen3NextForCausalLM": HYBRID,
    "Qwen3_5ForCausalLM": HYBRID,
    "Qwen3_5ForConditionalGeneration": {"text_config": HYBRID, "vision_config": VISION},
    "Qwen3_5MoeForCausalLM": HYBRID,
    "Qwen3_5MoeForConditionalGeneration": {"text_config": HYBRID, "vision_config": VISION},
}
"""Other values for architectures whose configs refuse those of `SIZES`, and for parts of them."""

NOT_ROUNDED = ("A_log", "dt_bias")
"""Ends of the names of tensors that stay float32 in models of 16 bits."""

# Architectures that transformers does not have, and those of the same decoder that it has.
SAME_AS = {"MiMoForCausalLM": "Qwen2ForCausalLM"}


@pytest.fixture(params=sorted(MODELS))
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def class_of(architecture: str) -> Any:
    """The class in transformers."""
    return getattr(transformers, SAME_AS.get(architecture, architecture))


def save(architecture: str, directory: Path) -> Any:
    """A random checkpoint of the architecture, saved; the transformers model."""
    oracle_class = class_of(architecture)
    torch.manual_seed(1)
    config = oracle_class.config_class(**sizes_of(oracle_class.config_class(), CHANGES.get(architecture, {})))
    oracle = oracle_class(config).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in oracle.named_buffers():
            if name.endswith("correction_bias"):  # of experts, in multiples that 16 bits have
                buffer.copy_(torch.randint(-8, 8, buffer.shape) / 64)
    oracle.save_pretrained(directory)
    data = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**data, "architectures": [architecture]}))
    return oracle


def sizes_of(default: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """The values of `SIZES` for a config, and of its text model, with changes."""
    known = {*default.to_dict(), *default.attribute_map}
    sizes = {key: value for key, value in SIZES.items() if key in known} | changes
    if "text_config" in known:
        sizes["text_config"] = sizes_of(default.text_config, changes.get("text_config", {}))
    return sizes


def states_of(kv: PagedKV) -> StateRows | None:
    """The states of two rows, without drafts; None if the model has no states."""
    if kv.states is None:
        return None
    return kv.states.rows(torch.arange(2, device=kv.states.owed.device), 0)


class Step:
    """A launched forward: two rows of four tokens, what it writes allocated before."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.kv = PagedKV.for_model(model, 9, 4, num_slots=2)
        self.page_table = torch.randperm(8).view(2, 4).int() + 1
        self.base = torch.tensor([5, 9])
        self.tokens = torch.randint(0, SIZES["vocab_size"], (2, 4))
        self.logits = torch.zeros(2, 4, SIZES["vocab_size"], dtype=model.config.dtype)
        self.aux = torch.zeros(2, 4, 2 * SIZES["hidden_size"], dtype=model.config.dtype)

    def __call__(self) -> None:
        rows = Rows(self.page_table, self.base, 4, states=states_of(self.kv))
        hidden = self.model.forward(self.tokens, self.kv, rows, (0, 2), self.aux)
        self.model.logits(hidden.last, self.logits)
        self.base.add_(1)


def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    oracle = save(architecture, tmp_path)
    model = load_model(tmp_path)
    assert model.config.architecture == architecture
    check_logits(model, oracle)


def test_missing_keys_are_refused_or_have_the_values_of_transformers(architecture: str) -> None:
    data = json.loads(json.dumps(class_of(architecture).config_class().to_dict()))
    data |= {"architectures": [architecture], "dtype": "float32"} | FILLED.get(architecture, {})
    wanted = parse_config(data, "config.json")[1]
    assert not wanted.why_generic
    few = {key: value for key, value in data.items() if key in REQUIRED}
    text = data.get("text_config", {})
    parts = {
        "all": few | ({"text_config": {}} if text else {}),
        **{key: without(data, key) for key in data.keys() - {*REQUIRED, "text_config"}},
        **{f"text_config: {key}": data | {"text_config": without(text, key)} for key in text},
    }
    differ = []
    for dropped, part in parts.items():
        try:
            same = parse_config(part, "config.json")[1] == wanted
        except ModelError as error:
            if "is missing" not in str(error):
                raise
        else:
            differ += [] if same else [dropped]
    assert not differ


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def test_layers_attend_within_the_windows_of_the_cache(architecture: str, tmp_path: Path) -> None:
    sizes = [3 + 4 * layer for layer in range(SIZES["num_hidden_layers"])]
    oracle = mask_layers(save(architecture, tmp_path), sizes, sinks=2)
    check_logits(load_model(tmp_path), oracle, [Window(size, 2) for size in sizes])


def check_logits(model: Model, oracle: Any, windows: list[Window] | None = None) -> None:
    """Compare the logits of two texts, read in parts."""
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 20))
    kv = PagedKV.for_model(model, 11, 4, windows, num_slots=2)
    table = torch.randperm(10).view(2, 5).int() + 1
    got = []
    with torch.inference_mode():
        for start, stop in ((0, 13), (13, 14), (14, 18), (18, 20)):
            rows = Rows(table, torch.full((2,), start), stop - start, states=states_of(kv))
            hidden = model.forward(tokens[:, start:stop], kv, rows)
            got.append(model.logits(hidden.last))
        wanted = oracle(tokens).logits
    torch.testing.assert_close(torch.cat(got, 1), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits_give_the_results_of_the_same_values(
    architecture: str, dtype: str, tmp_path: Path
) -> None:
    """With activations in float32, they are widened as they are read: nothing tells a model of them from one of float32
    with the same values."""
    close = partial(torch.testing.assert_close, rtol=0.0, atol=0.0)
    save(architecture, tmp_path)
    halves = load_model(tmp_path, dtype=dtype, activation_dtype="float32")
    stored = load_file(tmp_path / "model.safetensors")
    tensors = {
        name: t if name.endswith(NOT_ROUNDED) else t.to(getattr(torch, dtype)).float()
        for name, t in stored.items()
    }
    widened = model_in_memory(tensors, json.loads((tmp_path / "config.json").read_text()), dtype="float32")
    assert halves.embedding.dtype == getattr(torch, dtype)
    assert widened.embedding.dtype == torch.float32
    torch.manual_seed(3)
    one, other = Step(halves), Step(widened)
    other.page_table, other.tokens = one.page_table, one.tokens
    with torch.inference_mode():
        for _ in range(2):
            one(), other()
            close(one.logits, other.logits)
            close(one.aux, other.aux)
            close(one.kv.groups[0], other.kv.groups[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_keeps_the_rule_of_launched_functions(architecture: str, dtype: str, tmp_path: Path) -> None:
    save(architecture, tmp_path)
    with torch.inference_mode():
        check_launched(Step(load_model(tmp_path, dtype=dtype, activation_dtype="float32")))


def test_forward_runs_on_fake_cuda_as_it_is_built_there(architecture: str, tmp_path: Path) -> None:
    save(architecture, tmp_path)
    config = with_dtype(read_config(tmp_path)[1], "auto", torch.device("cuda"))
    with cuda_device_guard(), FakeTensorMode(), torch.inference_mode():
        model: Model = load("models", architecture)(config, FakeWeights(tmp_path, config.dtype))
        kv = PagedKV.for_model(model, 9, 4, num_slots=2)
        page_table = torch.zeros(2, 4, dtype=torch.int32, device="cuda")
        base = torch.zeros(2, dtype=torch.int64, device="cuda")
        for width in (1, 4, 40):
            tokens = torch.zeros(2, width, dtype=torch.int64, device="cuda")
            rows = Rows(page_table, base, width, states=states_of(kv))
            hidden = model.forward(tokens, kv, rows, (1,))
            logits = model.logits(hidden.last)
            assert logits.device.type == hidden.aux.device.type == "cuda"
            assert logits.shape == (2, width, SIZES["vocab_size"])
            assert hidden.aux.shape == (2, width, SIZES["hidden_size"])


def test_random_weights_make_the_model(architecture: str, tmp_path: Path) -> None:
    save(architecture, tmp_path)
    family, config = read_config(tmp_path)
    config = with_dtype(config, "auto", torch.device("cpu"))
    with torch.inference_mode():
        one, same, other = (Step(family(config, RandomWeights(config, seed))) for seed in (0, 0, 1))
        for step in (one, same, other):
            step.page_table, step.tokens = one.page_table, one.tokens
            step()
    assert one.logits.isfinite().all()
    assert one.logits.std() > 0
    assert torch.equal(one.logits, same.logits)
    assert not torch.allclose(one.logits, other.logits)


def test_checking_weights_needs_neither_transformers_nor_torchs_compiler(tmp_path: Path) -> None:
    """Both take seconds to import."""
    for name in MODELS:
        save(name, tmp_path / name)
    code = f"""
import sys
from pathlib import Path
from weft.models.architectures import read_config
from weft.models.loading import check_weights
for path in Path({str(tmp_path)!r}).iterdir():
    check_weights(*read_config(path), path)
    print(path.name, *{{"transformers", "torch._dynamo"}} & sys.modules.keys())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert sorted(run.stdout.split()) == sorted(MODELS), run.stdout + run.stderr
