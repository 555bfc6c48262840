"""What is made ready for a GPU machine: the first tier of its tests, what is carried there, what make runs."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CARRY = runpy.run_path(str(ROOT / "tools" / "gpu_carry.py"))
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
ENGINES = ("test_engine_cuda.py", "test_executor_cuda.py")


@pytest.mark.process
def test_the_first_tier_has_something_of_every_test_and_few_engines() -> None:
    command = [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-q", "-m", "gpu_smoke"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240).stdout
    smoke = [line for line in out.splitlines() if "::" in line]
    sources = (ROOT / "tests" / "gpu").glob("test_*.py")
    functions = {(path.name, name) for path in sources for name in TEST.findall(path.read_text())}
    assert {
        (case.split("::")[0].split("/")[-1], case.split("::")[1].split("[")[0]) for case in smoke
    } == functions
    engines = Counter(case.split("[")[0].split("::")[1] for case in smoke if any(e in case for e in ENGINES))
    named = runpy.run_path(str(ROOT / "tests" / "gpu" / "conftest.py"))["NAMED"]
    assert {name: engines[name] for name in named} == {name: len(ids) for name, ids in named.items()}
    assert 12 <= engines.total() <= 24 and len(smoke) - engines.total() <= 200


def test_what_weft_needs_is_carried_or_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[ ]", line)[0].lower() for line in project["dependencies"]}
    assert needed <= CARRY["THERE"] | set(CARRY["CARRIED"])
    assert not CARRY["THERE"] & set(CARRY["CARRIED"])


def test_make_and_an_isolated_build_install_the_same_to_build_with() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    names = [re.split(r"[<>=]", line)[0] for line in required]
    installed = f"-c constraints.txt {' '.join(names)} cmake ninja"
    assert any(
        "$(PIP) install" in line and line.endswith(installed)
        for line in (ROOT / "Makefile").read_text().splitlines()
    )
    constraints = (ROOT / "constraints.txt").read_text()
    assert all(f"{name}==" in constraints for name in names)
    assert "--no-build-isolation" not in CARRY["build_command"]("90", Path("wheels"))


def test_wheels_are_of_the_versions_that_are_tested() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    assert re.fullmatch(r"xgrammar==[\d.]+", CARRY["requirement"]("xgrammar", constraints))
    assert CARRY["requirement"]("not-a-package", constraints) == "not-a-package"
    command = CARRY["download_command"]("llguidance==1", Path("wheels"))
    assert "manylinux_2_31_x86_64" in command and command[-3:] == ["-d", "wheels", "llguidance==1"]
    assert "cmake.define.WEFT_CUDA_ARCHITECTURES=90-real" in CARRY["build_command"]("90", Path("wheels"))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_targets_take_a_wheel_and_go_on_in_the_second_tier() -> None:
    command = ["make", "-n", "gpu-test", "WHEEL=.gpu/*.whl", "GPU_SITE=site", "GPU_PYTHON=python"]
    # Tests may run under a make of their own, whose flags would have this one print the directories it enters.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    lines = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    install, first, second = (line for line in lines.replace("\\\n", "").splitlines() if line.strip())
    assert "--target site" in install and install.endswith(".gpu/*.whl") and "--no-index" in install
    for line in (first, second):
        assert line.startswith(
            "PYTHONPATH=site python -m pytest tests/gpu tests/contracts/test_runtime.py tests/contracts"
        )
        assert "--timeout=60 --timeout-method=thread" in line and "import xdist" in line
    assert first.endswith("-m gpu_smoke") and second.endswith('-m "gpu and not gpu_smoke"')
