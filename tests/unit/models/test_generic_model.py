"""Models that transformers' code runs: which directories load, which are refused and why, and the check at loading."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import modeling_gemma2

from support.families import FAMILIES, HYBRIDS, save
from support.generic import without_modules
from weft.errors import ModelError
from weft.models.architectures import read_config
from weft.models.base import Model, PagedKV
from weft.models.generic import calls, mixers
from weft.models.generic.model import TransformersModel
from weft.models.in_memory import model_in_memory
from weft.models.loading import load_model
from weft.models.states import States
from weft.ops.attention import NO_WINDOW, Heads, KVLayer, Rows, attend
from weft.ops.linear import Linear
from weft.ops.recurrence import convolve, recur

SETTINGS = {
    **FAMILIES,
    **HYBRIDS,
    "gemma2 capped": {**FAMILIES["gemma2"], "attn_logit_softcapping": 0.05},
}


@pytest.fixture(autouse=True)
def generic() -> Iterator[None]:
    """Let transformers' code run all families."""
    with without_modules():
        yield


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Makes a family's checkpoint, once."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(family: str) -> tuple[Path, Any]:
        if family not in made:
            path = tmp_path_factory.mktemp("family")
            made[family] = path, save(family, SETTINGS[family], path)
        return made[family]

    return get


def changed(
    path: Path, target: Path, config: dict[str, Any], weights: Callable[..., Any] | None = None
) -> Path:
    """A copy of a checkpoint with other values in config.json, and with the tensors that `weights` returns."""
    target.mkdir(exist_ok=True)
    data = json.loads((path / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**data, **config}))
    tensors = load_file(path / "model.safetensors")
    save_file(tensors if weights is None else weights(tensors), target / "model.safetensors")
    return target


@torch.inference_mode()
def logits_of(model: Model, tokens: list[int]) -> Tensor:
    """The logits [length, V] of a text, read in three parts."""
    kv = PagedKV.for_model(model, len(tokens) // 16 + 2, 16)
    if model.config.has_states:
        kv.states = States(model.config.layer_memories, 1, 0, 0, False, "cpu")
    table = torch.arange(1, kv.num_pages, dtype=torch.int32)[None]
    out, bounds = [], [0, len(tokens) // 3, len(tokens) // 3 + 1, len(tokens)]
    for begin, end in pairwise(bounds):
        states = kv.states.rows(torch.tensor([0]), 0) if kv.states is not None else None
        rows = Rows(table, torch.tensor([begin]), end - begin, states=states)
        out.append(model.logits(model.forward(torch.tensor([tokens[begin:end]]), kv, rows).last)[0])
    return torch.cat(out)


@torch.inference_mode()
def expected_logits(network: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    scale = expected.abs().max()
    torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=tolerance)


TEXT = [(7 * i * i + 3 * i) % 900 + 3 for i in range(30)]


# -- the check at loading


def no_window(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer._replace(window=NO_WINDOW), rows, heads)


def other_scale(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer, rows, replace(heads, scale=heads.scale * 1.5))


def no_soft_cap(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer, rows, replace(heads, softcap=0.0))


def no_sink_logits(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer, rows, replace(heads, sink_logits=None))


def wrong_values(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer._replace(values=layer.keys[..., : layer.values.shape[-1]]), rows, heads)


def wrong_positions(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads) -> Tensor:
    return attend(qkv, layer, replace(rows, base=rows.base.clamp(max=8)), heads)


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("gemma2", no_window),
        ("gemma2", other_scale),
        ("gemma2 capped", no_soft_cap),
        ("gpt_oss", no_sink_logits),
        ("gpt2", wrong_values),
        ("gpt2", wrong_positions),
    ],
)
def test_a_model_that_attends_otherwise_is_refused(
    saved: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch, family: str, wrong: Any
) -> None:
    path, _ = saved(family)
    load_model(path)
    monkeypatch.setattr(calls, "attend", wrong)
    with pytest.raises(ModelError, match="read in parts, texts have other logits than read whole"):
        load_model(path)


@pytest.mark.parametrize("family", ["qwen3_next", "mamba2"])
@pytest.mark.parametrize("function", ["recur", "convolve"])
def test_a_model_that_loses_its_state_is_refused(
    saved: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch, family: str, function: str
) -> None:
    path, _ = saved(family)
    original: Any = {"recur": recur, "convolve": convolve}[function]

    def forgets(*args: Any) -> Any:
        rows = next(each for each in args if isinstance(each, Rows))
        start = replace(rows, base=torch.zeros_like(rows.base))
        return original(*(start if each is rows else each for each in args))

    def keeps_drafts(*args: Any) -> Any:
        rows = next(each for each in args if isinstance(each, Rows))
        assert rows.states is not None
        states = replace(rows.states, owed=torch.full_like(rows.states.owed, 3))
        return original(*(replace(rows, states=states) if each is rows else each for each in args))

    for wrong in (forgets, keeps_drafts):
        monkeypatch.setattr(mixers, function, wrong)
        with pytest.raises(ModelError, match="read in parts, texts have other logits than read whole"):
            load_model(path)
        monkeypatch.undo()


@pytest.mark.parametrize("on_meta", [True, False])
def test_code_that_reads_values_is_refused(
    saved: Callable[[str], tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch, on_meta: bool
) -> None:
    """Also if it does so only where there are values."""
    forward = modeling_gemma2.Gemma2MLP.forward

    def reads(self: Any, x: Tensor) -> Tensor:
        if (on_meta or x.device.type != "meta") and bool(x.sum() > 1e9):
            x = x + 1
        return forward(self, x)

    path, _ = saved("gemma2")
    monkeypatch.setattr(modeling_gemma2.Gemma2MLP, "forward", reads)
    with pytest.raises(ModelError, match="its code reads values of tensors"):
        load_model(path)


# -- weights


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    for family in ("gemma2", "gpt2"):
        path = tmp_path / family
        network = save(family, {**FAMILIES[family], "tie_word_embeddings": True}, path)
        model = load_model(path)
        assert isinstance(model, TransformersModel)
        assert isinstance(model.embedding, Linear) and model.config.tie_word_embeddings
        assert model.network.get_output_embeddings().product is model.embedding
        assert_near(logits_of(model, TEXT), expected_logits(network, TEXT))


def halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "deepseek_v3", "qwen3_next", "mamba"])
def test_weights_in_16_bits_are_computed_in_float32(
    saved: Callable[[str], tuple[Path, Any]], tmp_path: Path, family: str
) -> None:
    path = changed(saved(family)[0], tmp_path / "half", {"dtype": "bfloat16"}, halved)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model = load_model(path, activation_dtype="float32")
    assert model.config.dtype is torch.float32
    assert_near(logits_of(model, TEXT), expected_logits(network, TEXT))


def _rounded(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.bfloat16().float() for x in inputs)


@pytest.mark.parametrize("family", ["gemma2", "mamba"])
def test_activations_may_be_rounded(
    saved: Callable[[str], tuple[Path, Any]], tmp_path: Path, family: str
) -> None:
    """transformers' linear layers then read rounded inputs. A few inputs near the middle of two numbers in bfloat16 are
    rounded to the other one."""
    path = changed(saved(family)[0], tmp_path / "half", {"dtype": "bfloat16"}, halved)
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    exact = expected_logits(network, TEXT)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith("dt_proj"):
            module.register_forward_pre_hook(_rounded)
    expected = expected_logits(network, TEXT)
    actual = logits_of(load_model(path, activation_dtype="bfloat16"), TEXT)
    difference, of_rounding = (actual - expected).abs().median(), (exact - expected).abs().median()
    assert difference < 0.01 * of_rounding


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "qwen3_5"])
def test_weights_in_memory_are_those_of_a_directory(
    saved: Callable[[str], tuple[Path, Any]], family: str
) -> None:
    path, network = saved(family)
    config = json.loads((path / "config.json").read_text())
    model = model_in_memory(load_file(path / "model.safetensors"), config)
    actual = logits_of(model, TEXT)
    assert torch.equal(actual, logits_of(load_model(path), TEXT))
    assert_near(actual, expected_logits(network, TEXT))


def without(name: str) -> Callable[..., Any]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def cut(name: str) -> Callable[..., Any]:
    return lambda tensors: {**tensors, name: tensors[name][:-1].contiguous()}


def added(name: str) -> Callable[..., Any]:
    return lambda tensors: {**tensors, name: torch.ones(3)}


NAME = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (without(NAME), f"tensors '{NAME}' are missing"),
        (cut(NAME), rf"tensor '{NAME}' has shape \[63, 64\]; config.json wants \[64, 64\]"),
        (added("extra"), "tensors 'extra' have no place in the architecture that config.json names"),
    ],
    ids=["missing", "misshapen", "unknown"],
)
def test_wrong_tensors_are_refused_by_name(
    saved: Callable[[str], tuple[Path, Any]], tmp_path: Path, weights: Callable[..., Any], message: str
) -> None:
    path = changed(saved("gemma2")[0], tmp_path, {}, weights)
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))}.*{message}"):
        load_model(path)


# -- config.json


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"architectures": ["NoSuchForCausalLM"]},
            "'architectures' names NoSuchForCausalLM; neither weft nor transformers .* update transformers",
        ),
        (
            {"architectures": ["NoSuchForCausalLM"], "auto_map": {"AutoModelForCausalLM": "code.NoSuch"}},
            "its code is in the directory, and weft runs no code from there",
        ),
        ({"model_type": "no_such"}, "and the 'model_type' 'no_such'"),
        ({"architectures": ["Gemma2Model"]}, "Gemma2Model"),
        ({"architectures": ["Gemma2ForSequenceClassification"]}, "Gemma2ForSequenceClassification"),
        ({"num_key_value_heads": 3}, ""),
        ({"hidden_activation": "no_such"}, "transformers can't make this network: .*no_such"),
        ({"rope_parameters": {"rope_type": "no_such"}}, "no_such"),
        ({"num_hidden_layers": "many"}, "transformers refuses it"),
    ],
)
def test_wrong_configs_are_refused(
    saved: Callable[[str], tuple[Path, Any]], tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    path = changed(saved("gemma2")[0], tmp_path, config)
    with pytest.raises(ModelError, match=f"^{re.escape(str(path))}.*{message}"):
        load_model(path)


def test_code_of_a_directory_is_never_run(saved: Callable[[str], tuple[Path, Any]], tmp_path: Path) -> None:
    path = changed(saved("gemma2")[0], tmp_path, {"auto_map": {"AutoModelForCausalLM": "code.NoSuch"}})
    (path / "code.py").write_text("raise SystemExit('this ran')")
    assert read_config(path)[1].architecture == "Gemma2ForCausalLM"
    assert isinstance(load_model(path), TransformersModel)


# -- rotary embeddings by length


@pytest.mark.parametrize(("max_seq_len", "length"), [(256, 200), (512, 300)])
def test_longrope_is_chosen_by_the_longest_text(
    saved: Callable[[str], tuple[Path, Any]], max_seq_len: int, length: int
) -> None:
    """A text of 300 tokens is beyond the original 256, so transformers takes the long factors for it, too."""
    path, network = saved("phi3 longrope")
    text = [(7 * i * i + 3 * i) % 900 + 3 for i in range(length)]
    model = load_model(path, max_seq_len=max_seq_len)
    assert_near(logits_of(model, text), expected_logits(network, text))


def test_longrope_does_not_depend_on_other_texts(saved: Callable[[str], tuple[Path, Any]]) -> None:
    """A short text has the long factors, too, if longer texts may come."""
    path, _ = saved("phi3 longrope")
    long, short = (logits_of(load_model(path, max_seq_len=length), TEXT) for length in (512, 256))
    assert (long - short).abs().max() > 0.01 * short.abs().max()
    text = [(7 * i * i + 3 * i) % 900 + 3 for i in range(300)]
    model = load_model(path, max_seq_len=512)
    assert torch.equal(logits_of(model, text)[:9], logits_of(model, text[:200])[:9])
    assert torch.equal(logits_of(model, TEXT), long)
