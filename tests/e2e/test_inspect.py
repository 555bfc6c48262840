"""`weft inspect`: the facts of a model directory, from its config and the headers of its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from weft import InputError, ModelError, TokenizerError
from weft.cli import app
from weft.client.model_facts import ModelFacts, cache_line, fact_lines, room_line, weights_line
from weft.config import EngineConfig, package_model_path
from weft.models.base import PagedKV
from weft.models.loading import load_model
from weft.models.memory import Convolution, LayerMemory, Pages, Recurrence, State
from weft.models.states import slot_bytes
from weft.models.stored import MappedFiles

PATH, CPU = package_model_path(), torch.device("cpu")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of weft-tiny."""
    return Path(shutil.copytree(PATH, tmp_path / "model"))


def edit(directory: Path, change: Callable[[dict[str, Tensor]], object] | None = None, **config: Any) -> None:
    if change is not None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))


def test_all_facts_are_told_and_no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    take = MappedFiles.take
    monkeypatch.setattr(MappedFiles, "take", lambda self, name: taken.append(name) or take(self, name))
    result = CliRunner().invoke(app, ["inspect", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.output.splitlines()]
    facts = lines[lines.index(f"model directory: {PATH}") + 1 :]
    assert [fact.partition(":")[0] for fact in facts] == [
        "runs by", "model", "weights", "cache", "room", "tokenizer", "chat template", "EAGLE3 head", "MTP layers",
        "draft model",
    ]  # fmt: skip
    assert facts[0] == "runs by: weft.models.llama.Llama; weft has a module of its own for LlamaForCausalLM"
    assert "end tokens [1]" in facts[5] and facts[6].startswith("chat template: calls in")
    assert (
        "reads layers [1, 3, 4]" in facts[7] and "1, in mtp/" in facts[8] and "LlamaForCausalLM" in facts[9]
    )
    assert set(taken) <= {"d2t"}, "the EAGLE3 head's map of ids is checked"


def test_the_sizes_are_those_of_the_loaded_model() -> None:
    facts, model = ModelFacts.read(PATH, CPU), load_model(PATH)
    kv = PagedKV.for_model(model, 2, 16, dtype=torch.bfloat16)
    assert facts.token_bytes("auto") * 16 == kv.page_bytes
    engine = EngineConfig(page_size=16).resolved(1024, 0)
    assert cache_line(facts, engine) == "cache: 1.92 kB a token in bfloat16, 30.7 kB a page of 16 tokens"
    assert weights_line(facts).endswith("with matrices in float16")
    each = engine.pages_for(1024, 0) * kv.page_bytes
    assert facts.num_sequences(engine, facts.weight_bytes + 20 * each) == 10
    assert "10 sequences of 1,024 tokens" in room_line(facts, engine, facts.weight_bytes + 20 * each)
    assert room_line(facts, engine, 1000) == "room: none for the weights: 1 kB free on cpu"
    wide = ModelFacts.read(PATH, CPU, "float32")
    assert wide.weight_bytes > 1.9 * facts.weight_bytes


def test_states_count_as_they_are_kept() -> None:
    facts = ModelFacts.read(PATH, CPU)
    recurrence, convolution = Recurrence(4, 2, 8, 16), Convolution(10, 4)
    memories = (
        LayerMemory(Pages(2, 8, 8)),
        LayerMemory(state=State((convolution,), (recurrence,))),
        LayerMemory(Pages(1, 24, 16, values_in_keys=True), State((convolution,))),
        LayerMemory(),
    )
    facts.model.config = replace(facts.config, memories=memories)
    assert facts.token_bytes("float32") == 4 * (2 * 16 + 24)
    assert facts.token_bytes("auto") == facts.token_bytes("float16") == 2 * (2 * 16 + 24)
    assert facts.token_bytes("fp8") == 2 * 16 + 24
    assert facts.token_bytes("int8") == 2 * 16 + 2 * 2 * 2 + 24 + 2, (
        "each head's key and value has a scale of 2 bytes"
    )
    assert facts.state_bytes == slot_bytes(memories, 0, False) >= 4 * (2 * 10 * 3 + 4 * 8 * 16)
    engine = EngineConfig(page_size=16).resolved(64, 0)
    assert cache_line(facts, engine).endswith("of state a sequence")
    each = engine.pages_for(64, 0) * 16 * facts.token_bytes("auto") + facts.state_bytes
    assert facts.num_sequences(engine, facts.weight_bytes + 20 * each) == 10


@pytest.mark.parametrize("part", ["eagle3", "mtp", "draft"])
def test_a_drafter_that_does_not_fit_is_named(part: str, directory: Path) -> None:
    (directory / part / "config.json").write_text(
        json.dumps({**json.loads((directory / part / "config.json").read_text()), "vocab_size": 1000})
    )
    with pytest.raises(ModelError, match=part):
        fact_lines(ModelFacts.read(directory, CPU), 10**9)
    shutil.rmtree(directory / part)
    assert any("none (no " + part in line for line in fact_lines(ModelFacts.read(directory, CPU), 10**9))


def test_faults_are_those_of_loading(directory: Path) -> None:
    edit(directory, vocab_size=1000)
    result = CliRunner().invoke(app, ["inspect", str(directory)])
    assert "weft can't run it:" in result.output
    assert isinstance(result.exception, ModelError) and "'vocab_size' is 1000 there" in str(result.exception)
    edit(directory, lambda tensors: tensors.pop("model.norm.weight"), vocab_size=1536)
    with pytest.raises(ModelError, match=r"no tensor 'model.norm.weight'"):
        ModelFacts.read(directory, CPU)


def test_a_missing_tokenizer_is_named(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer.json"):
        fact_lines(ModelFacts.read(directory, CPU), 10**9)


def test_a_directory_is_given_once() -> None:
    result = CliRunner().invoke(app, ["inspect", "weft-tiny", "-m", "smollm2"])
    assert isinstance(result.exception, InputError) and "two models: 'weft-tiny'" in str(result.exception)
