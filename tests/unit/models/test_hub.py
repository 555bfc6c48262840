"""Models of the Hugging Face hub, from a local server that speaks its protocol to the real client."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from weft import LLM, ModelError, SamplingParams, package_model_path
from weft.cli import app
from weft.config import model_directory, model_name
from weft.models import hub as module
from weft.models.hub import get_from_hub
from weft.server.models import ServedModelConfig, name_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """A model of the hub. `is_gated`: its files are refused, as without consent. `cut_at`: the first answer with a file
    of weights ends after this number of bytes, as if the connection broke. `refusal`: the status and the message of
    all answers. `sizes`: sizes of files that the hub claims."""

    files: dict[str, bytes]
    is_gated: bool = False
    cut_at: int | None = None
    refusal: tuple[int, str] | None = None
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass
class Hub:
    """A running hub. `requests` lists the method, the path and the Range header of each request."""

    url: str
    repositories: dict[str, Repository]
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def downloads(self) -> list[str]:
        """The names of the files that were downloaded."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


class HubServer:
    """Runs a hub on a free port. A context manager."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        server = self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        hub = self.hub = Hub(f"http://127.0.0.1:{server.server_port}", repositories)
        setattr(server, "hub", hub)  # noqa: B010  # read by the handler
        self._thread = threading.Thread(target=server.serve_forever, args=(0.01,))

    def __enter__(self) -> Hub:
        self._thread.start()
        return self.hub

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, has_body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path).strip("/")
        hub.requests.append((self.command, path, self.headers.get("Range")))
        name = path.removeprefix("api/models/").partition("/resolve/")[0]
        repository = hub.repositories.get(name)
        if repository is None:
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, has_body)
        if repository.refusal is not None:
            status, message = repository.refusal
            return self._send(status, b"{}", {"X-Error-Message": message}, has_body)
        if path.startswith("api/models/"):
            return self._send(200, json.dumps(_info(name, repository)).encode(), {}, has_body)
        if repository.is_gated:
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, has_body)
        file = path.partition("/resolve/")[2].partition("/")[2]
        data = repository.files.get(file)
        if data is None:
            return self._send(
                404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, has_body
            )
        self._send_file(repository, file, data, has_body)

    def _send_file(self, repository: Repository, file: str, data: bytes, has_body: bool) -> None:
        tag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        range = self.headers.get("Range")
        start = int(range.removeprefix("bytes=").rstrip("-")) if range else 0
        if range:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = repository.cut_at
        if has_body and cut is not None and file.endswith(".safetensors"):
            repository.cut_at = None
            self.close_connection = True
            self._send(200, data, headers, has_body, shown=cut)
        else:
            self._send(206 if range else 200, data[start:], headers, has_body)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], has_body: bool, shown: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if has_body:
            self.wfile.write(data[:shown])


def _info(name: str, repository: Repository) -> dict[str, object]:
    files = [
        {"rfilename": file, "size": repository.sizes.get(file, len(data)), "blobId": "0" * 40}
        for file, data in repository.files.items()
    ]
    return {"id": name, "modelId": name, "sha": COMMIT, "siblings": files, "tags": [], "private": False}


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
    assert "downloading org/tiny (4.7 MB) to " in result.output and "weft chat org/tiny" in result.output
    assert hub.downloads()[0] == "config.json" and hub.downloads()[-1] == "model.safetensors"
    assert sorted(hub.downloads()) == sorted(FILES)
    directory = model_directory("org/tiny")
    assert directory.is_relative_to(tmp_path / "cache") and directory.name == COMMIT
    assert model_name("org/tiny") == name_of(ServedModelConfig("org/tiny")) == "org/tiny"
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
    for name, file, message in (
        ("absent", "c.safetensors", "names 'c.safetensors', which the repository does not have"),
        ("escaping", "../x", r"names the file '\.\./x'; give one inside the directory"),
        ("list", ["x"], r"names the file \['x'\]; give one inside"),
    ):
        files["model.safetensors.index.json"] = json.dumps({"weight_map": {**places, "x": file}}).encode()
        hub.repositories[f"org/{name}"] = Repository(files)
        with pytest.raises(ModelError, match=message):
            get_from_hub(f"org/{name}", print)
    files["model.safetensors.index.json"] = b'{"weight_map": null}'
    hub.repositories["org/null"] = Repository(files)
    with pytest.raises(ModelError, match="'weight_map' is missing"):
        get_from_hub("org/null", print)
    with pytest.raises(ModelError, match="'weight_map' is missing"):
        model_directory("org/null")


def test_the_name_of_a_file_can_not_command_the_terminal(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = sys.modules["huggingface_hub.utils.tqdm"]
    titles = []

    class Bar(bars.tqdm):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            titles.append(options["desc"])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(bars, "tqdm", Bar)
    name = "\x1b[2J.safetensors"
    files = {key: data for key, data in FILES.items() if key != "model.safetensors"}
    files |= {name: FILES["model.safetensors"]}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"x": name}}).encode()
    hub.repositories["org/colourful"] = Repository(files)
    assert (get_from_hub("org/colourful", print) / name).is_file()
    assert "\\x1b[2J.safetensors" in titles and name not in titles


@pytest.mark.parametrize("name", ["a--b/c", "a/b..c", "org/name.git", "a/b.", "org/" + 100 * "x"])
def test_the_hub_has_rules_for_names(hub: Hub, name: str) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        model_directory(name)
    with pytest.raises(ModelError, match=f"^{name}: .*(?i:repo)"):
        get_from_hub(name, print)
    assert not hub.requests


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        (
            with_config(architectures=["PerceptronLM"]),
            "names PerceptronLM; neither weft nor transformers",
        ),
        (with_config(quantization_config={"quant_method": "hqq"}), "quantised with HQQ; use"),
        (
            Repository({"model.gguf": b"x"}),
            "has no config.json; to use a GGUF file of it, run: hf download .* model.gguf",
        ),
        (
            Repository({f"big-0000{i}-of-00002.gguf": b"x" for i in (1, 2)}),
            r"hf download .* --include 'big-\*-of-00002\.gguf', and give weft the path of a part",
        ),
        (
            Repository({"config.json": FILES["config.json"], "pytorch_model.bin": b"x"}),
            "no model.safetensors",
        ),
        (
            Repository(FILES, is_gated=True),
            r"asks for consent: give it at .*/org/other, and then run `hf auth login`",
        ),
        (None, "has no such model, or it is private"),
        (
            Repository({}, refusal=(401, "Invalid credentials in Authorization header")),
            "refuses the token; run `hf auth login`",
        ),
        (Repository({}, refusal=(403, "no permission")), "answers 403: 403 Forbidden: no permission"),
        (Repository({}, refusal=(429, "")), "answers 429: it is busy; try again later"),
        (
            Repository(FILES, sizes={"config.json": 10**9}),
            "config.json has 1.0 GB; weft reads 268.4 MB at most",
        ),
        (Repository(FILES, sizes={"tokenizer.json": 10**9}), "tokenizer.json has 1.0 GB; weft reads"),
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
