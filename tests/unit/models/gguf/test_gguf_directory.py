"""The directories that stand for GGUF files: what is in them, when they are made, and which files are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.families import config_of, make_network
from support.gguf_files import write
from weft import LLM, EngineConfig, ModelError, SamplingParams, Speculation, package_model_path
from weft.cli import app
from weft.client.generation_config import sampling_defaults
from weft.config import model_directory, model_name
from weft.core.files import read_json
from weft.grammar import Vocabulary
from weft.models.architectures import read_config
from weft.models.gguf.header import read_header
from weft.models.gguf.metadata import Metadata
from weft.models.stored import count_parameters, gguf_file, stored_tensors

SETTINGS = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
SAMPLING = SamplingParams(max_tokens=6)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def network() -> Any:
    return make_network(config_of("llama", SETTINGS))


@pytest.fixture
def file(network: Any, tmp_path: Path) -> Path:
    return write(network, tmp_path / "small.gguf", "Q8_0")


def made(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "gguf").iterdir())


def test_a_file_is_a_model(file: Path, network: Any, cache: Path) -> None:
    directory = model_directory(file)
    assert directory.parent == cache / "gguf" and model_name(file) == "small"
    assert (directory / "model.gguf").resolve() == file == gguf_file(directory)
    assert model_directory(str(file)) == directory == model_directory(os.path.relpath(file))
    assert count_parameters(directory) == sum(each.numel() for each in network.parameters())
    with LLM(file, device="cpu") as llm:
        tokens = llm.generate([3, 4, 5], SAMPLING).token_ids
        assert llm.chat([{"role": "user", "content": "Text"}], SAMPLING).token_ids
    found = CliRunner().invoke(app, ["generate", "-m", str(file), "--max-tokens", "2", "Text"])
    assert found.exit_code == 0, found.output
    found = CliRunner().invoke(app, ["inspect", str(file)])
    assert f"model file: {file}, with config and tokenizer in {directory}" in found.output
    engine = EngineConfig(max_seq_len=512)
    with LLM(device="cpu", speculation=Speculation.draft_model(file), engine=engine) as llm:
        assert llm.generate([3, 4, 5], SAMPLING).token_ids
    assert len(tokens) == 6


def test_a_directory_is_made_again_only_if_the_file_changes(
    file: Path, network: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model_directory(file)
    stamp = (directory / "config.json").stat().st_mtime_ns
    assert model_directory(file) == directory
    assert (directory / "config.json").stat().st_mtime_ns == stamp
    time.sleep(0.01)
    write(network, file, "Q4_0")
    again = model_directory(file)
    assert again != directory
    assert stored_tensors(again)["model.layers.0.mlp.up_proj.weight"].dtype == "Q4_0"
    link = file.with_name("link.gguf")
    link.symlink_to(file)
    assert model_directory(link) == again


def age(directory: Path, hours: float) -> None:
    then = time.time() - 3600 * hours
    os.utime(directory, (then, then))


def test_older_directories_are_removed_a_day_after_their_last_use(
    network: Any, tmp_path: Path, cache: Path
) -> None:
    """The file's name is no pattern of other names."""
    file = tmp_path / "model[1].gguf"
    first = model_directory(write(network, file, "F32"))
    age(first, 25)
    assert model_directory(file) == first  # which uses it
    time.sleep(0.01)
    second = model_directory(write(network, file, "F16"))
    assert made(cache) == sorted([first.name, second.name])
    age(first, 25)
    time.sleep(0.01)
    third = model_directory(write(network, file, "Q8_0"))
    assert made(cache) == sorted([second.name, third.name])


def test_two_processes_make_one_directory(file: Path, cache: Path) -> None:
    code = "import sys; from weft.config import model_directory; print(model_directory(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(file)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {process.communicate(timeout=120)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert found == {str(model_directory(file))} and len(made(cache)) == 1


def test_a_cache_that_can_not_be_written_is_named(file: Path, cache: Path) -> None:
    cache.write_text("a file in its place")
    with pytest.raises(ModelError, match=r"can't be written .*; set WEFT_CACHE to a directory"):
        model_directory(file)


def test_a_directory_may_hold_a_file(file: Path, network: Any, tmp_path: Path) -> None:
    """As the directory of a checkpoint, with the config and the tokenizer of the original model."""
    directory = tmp_path / "model"
    shutil.copytree(package_model_path(), directory, ignore=shutil.ignore_patterns("*.safetensors", "draft"))
    network.save_pretrained(tmp_path / "original")
    shutil.copy(tmp_path / "original" / "config.json", directory)
    file.rename(directory / file.name)
    (directory / "mmproj-model.gguf").write_bytes(b"the encoder of images")
    assert model_directory(directory) == directory
    _, config = read_config(directory)
    assert config.adjacent_pairs and config.keeps_formats
    with LLM(directory, device="cpu") as llm, LLM(directory / file.name, device="cpu") as other:
        assert llm.generate([3, 4], SAMPLING).token_ids == other.generate([3, 4], SAMPLING).token_ids
    shutil.copy(directory / file.name, directory / "other.gguf")
    with pytest.raises(ModelError, match="has 2 GGUF files; give the path of one"):
        read_config(directory)


def test_a_config_without_a_module_is_refused(file: Path, tmp_path: Path) -> None:
    directory = model_directory(file)
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["CohereForCausalLM"], "model_type": "cohere"})
    )
    with pytest.raises(ModelError, match="runs GGUF files by modules of its own only: weft has no module"):
        read_config(tmp_path)


def test_what_a_file_says_about_sampling_and_ends(network: Any, tmp_path: Path) -> None:
    settings = {
        "general__sampling__temp": 0.6,
        "general__sampling__top_k": 20,
        "general__sampling__top_p": 0.95,
    }
    ends = {"tokenizer__ggml__eot_token_id": 7}
    directory = model_directory(write(network, tmp_path / "model.gguf", **settings, **ends))
    found = sampling_defaults(directory)
    assert found == pytest.approx({"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    assert set(Vocabulary.from_huggingface(directory).end_ids) >= {1, 7}


def test_ends_that_a_file_marks_as_text_are_ends(network: Any, tmp_path: Path) -> None:
    """As Gemma's files from Google do."""
    fields = Metadata(read_header(write(network, tmp_path / "plain.gguf")))
    tokens = fields.listed("tokenizer.ggml.tokens", str)
    types = fields.listed("tokenizer.ggml.token_type", int)
    tokens[9], types[9] = "<end_of_turn>", 1
    lists = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": types}
    directory = model_directory(write(network, tmp_path / "model.gguf", **lists))
    vocabulary = Vocabulary.from_huggingface(directory)
    assert 9 in vocabulary.end_ids
    (added,) = [each for each in read_json(directory / "tokenizer.json")["added_tokens"] if each["id"] == 9]
    assert added["special"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"general__architecture": "mamba"},
            "holds a 'mamba'; weft reads GGUF files of llama, qwen2, .*safetensors",
        ),
        ({"split__count": 3}, "is one of 3 parts of a model, and its name must say so"),
        ({"llama__rope__scaling__type": "spiral"}, "'spiral'; weft reads 'none', 'linear' and 'yarn'"),
        ({"llama__attention__value_length": 8}, "keys and values differ in size"),
        ({"llama__rope__dimension_count": 8}, "covers 8 of 16 numbers of a head"),
    ],
)
def test_other_models_are_refused(
    changes: dict[str, Any], message: str, network: Any, tmp_path: Path, cache: Path
) -> None:
    file = write(network, tmp_path / "model.gguf", **changes)
    with pytest.raises(ModelError, match=message):
        model_directory(file)
    assert not cache.exists()


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS"])
def test_other_types_of_tensors_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    network = make_network(config_of("llama", {**SETTINGS, "hidden_size": 256}))
    file = write(network, tmp_path / "model.gguf", kind)
    message = (
        rf"tensor 'token_embd.weight' is quantised with {kind}; use a file in Q4_K_M, Q5_K_M, Q6_K or Q8_0"
    )
    with pytest.raises(ModelError, match=message):
        model_directory(file)
