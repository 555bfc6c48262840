"""`weft serve --check`: all faults of a configuration at once, without loading weights."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.families import HYBRIDS, save
from weft.server.check import check_contents, check_models
from weft.server.config_file import read_config
from weft.server.faults import FaultList, Faults

BAD = """
[server]
prt = 8000
max_requests = "many"
drain_s = -1
[server.api_keys]
ada = "the same"
bob = "the same"

[[models]]
name = "a"
[models.speculation]
drafter = "eagle"
[models.engine]
max_bach = 3
page_size = 0
[models.guides]
year = {regx = "x"}
person = {json_schema = "person.json"}
place = {json_schema = {type = "objct"}}
day = {json_schema = {const = 2026-01-01}}
open = {json_schema = "{"}

[[models]]
path = "no/such/directory"
tool_style = "hermess"

[[models]]
name = "a"
dtype = "int3"
[models.engine]
max_seq_len = 100000

[[models]]
name = "drafting"
[models.speculation]
drafter = "draft_model"
path = "no/draft"

[programs]
missing = "missing.wasm"
wrong = "server.toml"
"""
FAULTS = [
    "there is no setting server.prt; did you mean port?",
    "server.max_requests must be an integer, not 'many'",
    "server.drain_s is -1; it must be 0 or more",
    "server.api_keys: two API keys are the same",
    "there is no setting models[0].engine.max_bach; did you mean max_batch?",
    "models[0].engine.page_size is 0; it must be at least 1",
    "models[0].speculation.drafter is 'eagle'; did you mean 'eagle3'?",
    "models[0].guides.year must have one of",
    "models[0].guides.person.json_schema is not valid JSON, and there is no file 'person.json' beside",
    "models[0].guides.place.json_schema: JSON schema at #: type is 'objct'",
    "models[0].guides.day.json_schema is not valid JSON: ",
    "models[0].guides.open.json_schema is not valid JSON: ",
    "programs.missing: ",
    "programs.wrong: ",
    "two models are called 'a'; give names",
    "models[1] (no/such/directory): tool_style is 'hermess'",
    "models[1] (no/such/directory): no/such/directory: no such directory",
    "models[2] (a): dtype 'int3' is none of",
    "models[2] (a): max_seq_len is 100000, but the model ends at 1024 positions",
    "models[3] (drafting): no/draft: no draft model there",
]
GOOD = """
[server]
host = "0.0.0.0"
[server.api_keys]
ada = "nobody prints this"
[[models]]
name = "assistant"
[models.speculation]
drafter = "eagle3"
forced = true
[models.guides]
year = {regex = "[0-9]{4}"}
[[models]]
"""


def served(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft.cli", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--check",), ("--check", "--config"), ("--port", "0", "--config")])
def test_all_faults_are_named_at_once(file: Path, options: tuple[str, ...]) -> None:
    """With and without --check, which here is with and without the guides' contents."""
    file.write_text(BAD)
    run = served(*options, str(file))
    first, *lines = run.stderr.splitlines()
    assert (run.returncode, run.stdout) == (2, "")
    assert first == f"weft: there are {len(FAULTS)} faults:"
    assert len(lines) == len(FAULTS)
    for line, fault in zip(lines, FAULTS, strict=True):
        assert fault in line
    assert all(str(file) in line for line in lines if "two models" not in line)


@pytest.mark.slow
def test_guides_that_do_not_compile_are_all_named(file: Path) -> None:
    file.write_text(
        "[[models]]\n[models.guides]\na = {regex = '('}\ngood = {regex = 'x'}\nb = {lark = 'start: c'}\n"
    )
    run = served("--check", str(file))
    first, *lines = run.stderr.splitlines()
    assert run.returncode == 2 and first == "weft: there are 2 faults:"
    assert [line.partition("(weft-tiny): ")[2].split(":")[0] for line in lines] == ["guides.a", "guides.b"]


@pytest.mark.slow
def test_a_configuration_without_faults_is_summed_up(file: Path) -> None:
    file.write_text(GOOD)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = served("--check", "--config", str(file), "--port", str(port), "--host", "127.0.0.1")
    assert (run.returncode, run.stderr) == (0, "")
    assert f"port {port}: API at http://127.0.0.1:{port}/v1, page at" in run.stdout
    assert "keys: ada" in run.stdout and "nobody prints this" not in run.stdout
    assert "drafter forced+eagle3; guides year" in run.stdout and "\nweft-tiny: " in run.stdout
    assert "2 million parameters in float16 on cpu" in run.stdout
    assert "of weights, pages and states" in run.stdout
    assert f"note: can't listen at 127.0.0.1, port {port}" in run.stdout


def test_one_model_of_the_command_line_is_checked() -> None:
    run = served("--check", "no/such/model")
    assert run.returncode == 2 and "no such directory" in run.stderr
    run = served("--check", "--tool-style", "nope")
    assert run.returncode == 2 and run.stderr.startswith("weft: InputError: weft-tiny: tool_style is 'nope'")


def test_the_estimate_is_what_an_engine_takes(file: Path) -> None:
    from weft.server.models import build

    file.write_text("[[models]]\n[models.engine]\nmax_batch = 2\n")
    faults, read = FaultList(), read_config(file)
    (checked,) = check_contents(check_models(read.models, faults), faults)
    faults.check()
    model = build(read.models[0])
    try:
        engine = model.client.engine
        assert checked.engine.num_pages == engine.config.num_pages
        assert checked.kv_bytes == sum(
            group.nbytes for cache in engine.parts.caches for group in cache.groups
        )
    finally:
        model.close()


def test_the_estimate_has_the_states_of_recurrent_layers(file: Path, tmp_path: Path) -> None:
    from weft.server.models import build

    save("mamba2", HYBRIDS["mamba2"], tmp_path / "model")
    file.write_text(f"[[models]]\npath = '{tmp_path / 'model'}'\n[models.engine]\nmax_batch = 2\n")
    faults, read = FaultList(), read_config(file)
    (checked,) = check_contents(check_models(read.models, faults), faults)
    faults.check()
    assert str(checked).endswith("0 MB of pages, 0 MB of states") and checked.kv_bytes == 0
    assert checked.num_bytes == checked.weight_bytes + checked.state_bytes
    model = build(read.models[0])
    try:
        states = model.client.engine.parts.kv.states
        assert states is not None and checked.state_bytes == states.storage.nbytes + states.drafts.nbytes
    finally:
        model.close()


def test_a_model_that_memory_has_no_room_for_is_a_fault(file: Path) -> None:
    file.write_text("[[models]]\n[models.engine]\nkv_max_bytes = 1000\n")
    faults = FaultList()
    check_contents(check_models(read_config(file).models, faults), faults)
    with pytest.raises(Faults, match=r"models\[0\] \(weft-tiny\): kv_max_bytes is 1000, room for 0 pages"):
        faults.check()
