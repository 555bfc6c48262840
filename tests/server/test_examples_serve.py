"""The files in examples/serve: the configuration loads, and commands have options that there are."""

from __future__ import annotations

import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer

from weft.cli import app
from weft.server.config_file import read_config
from weft.server.models import ServedModelConfig

ROOT = Path(__file__).parents[2]
SERVE = ROOT / "examples" / "serve"
DOCKERFILE, UNIT = (SERVE / name for name in ("Dockerfile", "weft.service"))


def commands() -> dict[str, list[str]]:
    """What runs weft, by file."""
    entry = re.search(r"^ENTRYPOINT \[(.+)\]$", DOCKERFILE.read_text(), re.MULTILINE)
    start = re.search(r"^ExecStart=(.+)$", UNIT.read_text(), re.MULTILINE)
    first = re.search(r"^# (weft .+)$", (SERVE / "server.toml").read_text(), re.MULTILINE)
    assert entry is not None and start is not None and first is not None
    return {
        "Dockerfile": [word.strip().strip('"') for word in entry[1].split(",")],
        "weft.service": shlex.split(start[1]),
        "server.toml": shlex.split(first[1]),
    }


@pytest.mark.parametrize("name", ["Dockerfile", "weft.service", "server.toml"])
def test_options_are_there(name: str) -> None:
    command, verb, *arguments = commands()[name]
    assert Path(command).name == "weft"
    group = typer.main.get_command(app)
    serve = group.commands[verb]  # type: ignore[attr-defined]
    with serve.make_context(verb, arguments, resilient_parsing=False) as context:
        assert Path(context.params["config"]).name == "server.toml"


def test_the_configuration_loads() -> None:
    read = read_config(SERVE / "server.toml")
    (model,) = read.models
    assert (
        isinstance(model, ServedModelConfig)
        and model.engine.untrusted_guides
        and list(model.handles) == ["year"]
    )
    assert model.speculation.drafters == ("forced", "eagle3")
    assert read.server.host == "0.0.0.0"  # within a container
    assert f"EXPOSE {read.server.port}" in DOCKERFILE.read_text()
    assert f":{read.server.port}/ready" in DOCKERFILE.read_text()
    ends = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert ends is not None and int(ends[1]) > read.server.drain_s
    stops = re.search(r"docker run --stop-timeout (\d+) ", DOCKERFILE.read_text())
    assert stops is not None and int(stops[1]) > read.server.drain_s


def test_what_a_container_is_built_from() -> None:
    """Nothing that is made, and all that the build copies."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"][
        "packages"
    ]
    needed = ["CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "csrc", "examples", *packages]
    assert all((ROOT / name).exists() for name in needed)
    assert [name for name in needed if is_ignored(name, patterns)] == []
    made = [".git", ".venv", ".gpu", ".peers", "build", "dist", "tests", "benchmarks/results"]
    assert [name for name in made if not is_ignored(name, patterns)] == []


def is_ignored(name: str, patterns: list[str]) -> bool:
    """Whether Docker leaves a path out: the last pattern that matches it or a folder above it decides."""
    paths = [str(path) for path in (Path(name), *Path(name).parents)]
    ignored = False
    for pattern in patterns:
        if any(fnmatch(path, pattern.removeprefix("!")) for path in paths):
            ignored = not pattern.startswith("!")
    return ignored
