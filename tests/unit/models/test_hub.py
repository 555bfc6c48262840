"""Models of the Hugging Face hub, from a local server that speaks its protocol to the real client."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from support.hub_server import COMMIT, Hub, HubServer, Repository
from weft import LLM, ModelError, SamplingParams, package_model_path
from weft.cli import app
from weft.config import model_directory, model_name
from weft.models import hub as module
from weft.models.hub import get_from_hub

FILES = {path.name: path.read_bytes() for path in package_model_path().iterdir() if path.is_file()}
CONFIG = json.loads(FILES["config.json"])
OTHERS = {"README.md": b"#", "consolidated.safetensors": b"x", "model.gguf": b"x", "pytorch_model.bin": b"x"}


def with_config(**changes: Any) -> Repository:
    return Repository({**FILES, "config.json": json.dumps({**CONFIG, **changes}).encode()})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one good model, org/tiny, and an empty cache."""
    with HubServer({"org/tiny": Repository(FILES | OTHERS)}) as hub:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", re.sub(r"^https?://[^/]+", hub.url, template)
        )
        yield hub


def test_a_model_is_got_once_and_loaded_by_its_name(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"org/tiny: no such directory; .* weft models get org/tiny"):
        LLM("org/tiny", device="cpu")
    result = CliRunner().invoke(app, ["models", "get", "org/tiny"])
    assert result.exit_code == 0, result.exception
    assert "downloading org/tiny (4.7 MB) to " in result.output and "weft chat -m org/tiny" in result.output
    assert hub.downloads()[0] == "config.json" and hub.downloads()[-1] == "model.safetensors"
    assert sorted(hub.downloads()) == sorted(FILES)
    directory = model_directory("org/tiny")
    assert directory.is_relative_to(tmp_path / "cache") and directory.name == COMMIT
    assert model_name("org/tiny") == "org/tiny"
    count = len(hub.requests)
    assert "org/tiny is in" in CliRunner().invoke(app, ["models", "get", "org/tiny"]).output
    with LLM("org/tiny", device="cpu") as llm:
        assert llm.generate("Text", SamplingParams(max_tokens=2)).token_ids
    assert len(hub.requests) == count  # a model in the cache needs no network


def test_a_name_of_the_catalogue_stands_for_a_model_of_the_hub(hub: Hub) -> None:
    with pytest.raises(ModelError, match=r"qwen3-0.6b .* get it with: weft models get qwen3-0.6b \(1.5 GB\)"):
        model_directory("qwen3-0.6b")
    hub.repositories["Qwen/Qwen3-0.6B"] = Repository(FILES)
    result = CliRunner().invoke(app, ["models", "get", "qwen3-0.6b"])
    assert result.exit_code == 0, result.exception
    assert model_directory("qwen3-0.6b") == model_directory("Qwen/Qwen3-0.6B")
    assert f"in {model_directory('qwen3-0.6b')}" in CliRunner().invoke(app, ["models"]).output


def test_weights_in_shards(hub: Hub, tmp_path: Path) -> None:
    tensors = load_file(package_model_path() / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    files = {name: data for name, data in FILES.items() if name != "model.safetensors"}
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, tmp_path / shard)
        files[shard] = (tmp_path / shard).read_bytes()
    places = {name: shard for shard, held in shards.items() for name in held}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    hub.repositories["org/shards"] = Repository(files)
    directory = get_from_hub("org/shards", print)
    (directory / "b.safetensors").unlink()  # as after an interrupt
    with pytest.raises(ModelError, match="weft models get org/shards"):
        model_directory("org/shards")
    shutil.rmtree(directory.parents[1] / "blobs")
    (directory / "b.safetensors").unlink(missing_ok=True)
    assert get_from_hub("org/shards", print) == model_directory("org/shards")
    places["x"] = "../x"
    files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    hub.repositories["org/escaping"] = Repository(files)
    with pytest.raises(ModelError, match=r"names '\.\./x', which the repository does not have"):
        get_from_hub("org/escaping", print)


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        (
            with_config(architectures=["GPT2LMHeadModel"]),
            "names GPT2LMHeadModel; weft knows LlamaForCausalLM",
        ),
        (with_config(quantization_config={"quant_method": "awq"}), "quantised checkpoints are not supported"),
        (Repository({"model.gguf": b"x"}), "has no config.json"),
        (
            Repository({"config.json": FILES["config.json"], "pytorch_model.bin": b"x"}),
            "no model.safetensors",
        ),
        (
            Repository(FILES, is_gated=True),
            r"asks for consent: give it at .*/org/other, and then run `hf auth login`",
        ),
        (None, "has no such model, or it is private"),
    ],
)
def test_a_model_that_weft_can_not_run_is_refused_before_its_weights(
    hub: Hub, repository: Repository | None, message: str
) -> None:
    if repository is not None:
        hub.repositories["org/other"] = repository
    with pytest.raises(ModelError, match=f"^org/other: .*{message}"):
        get_from_hub("org/other", print)
    assert not {*hub.downloads()} - {"config.json"}


def test_a_broken_connection_is_resumed(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.repositories["org/tiny"].cut_at = 100_000
    directory = get_from_hub("org/tiny", print)
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [
        range for method, path, range in hub.requests if method == "GET" and path.endswith("safetensors")
    ]
    assert ranges == [None, "bytes=100000-"]


def test_a_disk_without_room_is_said_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(module, "disk_usage", lambda path: usage(1000))
    with pytest.raises(
        ModelError, match=r"weights have 4\.7 MB, and .* has room for 0\.0 MB; make room, or set HF_HOME"
    ):
        get_from_hub("org/tiny", print)
    assert "model.safetensors" not in hub.downloads()


@pytest.mark.slow
def test_without_a_hub_it_is_said_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft.cli", "models", "get", "org/tiny"]
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    began = time.monotonic()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2 and "http://127.0.0.1:9 can't be reached (ConnectError: " in run.stderr
    assert time.monotonic() - began < 60
    offline = {**environment, "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(command, env=offline, capture_output=True, text=True, timeout=120)
    assert "HF_HUB_OFFLINE forbids" in run.stderr
