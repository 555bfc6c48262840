"""The kit for a GPU machine (`tools/gpu`): the first tier of the tests, wheels that go together, what `go.sh` makes of
its parts, and a rehearsal of the whole without a GPU."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.kernels.interpreter import needs_triton

ROOT = Path(__file__).parents[2]
KIT = ROOT / "tools" / "gpu"
CARRY = runpy.run_path(str(KIT / "carry.py"))
TEST = re.compile(r"^def (test_\w+)", re.MULTILINE)
ENGINES = ("test_engine_cuda.py", "test_executor_cuda.py")
MOST_PRINTED = 12_000
"""Characters that the kit may print: of a longer output the beginning can be lost."""


@pytest.mark.slow
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
    assert 12 <= engines.total() <= 24 and len(smoke) - engines.total() <= 230


# -- the wheels


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


def test_what_the_machine_lacks_is_carried() -> None:
    needs = {CARRY["name_of"](need) for need in CARRY["needs_of_weft"]()}
    assert {"xgrammar", "llguidance", "wasmtime", "pydantic", "jsonschema", "pytest-xdist"} <= needs
    assert not needs & CARRY["on_machine"]() and "torch" in CARRY["on_machine"]()
    assert CARRY["name_of"]("Apache_TVM.ffi >=1; python_version>'3'") == "apache-tvm-ffi"
    command = CARRY["download_command"](["llguidance==1"], Path("wheels"))
    assert "manylinux_2_31_x86_64" in command and command[-3:] == ["-d", "wheels", "llguidance==1"]
    assert "cmake.define.WEFT_CUDA_ARCHITECTURES=90-real" in CARRY["build_command"]("90", Path("wheels"))


def make_wheel(folder: Path, name: str, version: str, code: str = "", needs: tuple[str, ...] = ()) -> None:
    """A wheel of one module, as an index has it."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    metadata = "\n".join([f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", code)
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\n{metadata}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


PICKY = "import pydantic_core\nif pydantic_core.version != '2.50.4': raise SystemError('another core')\n"


@pytest.mark.slow
def test_what_packages_need_of_each_other_is_carried_in_versions_that_go_together(tmp_path: Path) -> None:
    """A package that takes one version alone of another, of which the index has newer ones; and one that needs torch,
    which is on the machine."""
    index, out, constraints = tmp_path / "index", tmp_path / "out", tmp_path / "constraints.txt"
    make_wheel(index, "pydantic", "2.14.3", PICKY, ("pydantic-core==2.50.4", "typing-extensions>=4.14"))
    make_wheel(index, "pydantic", "2.14.4", PICKY, ("pydantic-core==2.50.5",))
    for version in ("2.50.4", "2.50.5"):
        make_wheel(index, "pydantic_core", version, f"version = {version!r}")
    make_wheel(index, "typing_extensions", "4.16.0")
    make_wheel(index, "tvm_ffi", "0.1.0")
    extra = "sentencepiece; extra == 'test'"
    make_wheel(index, "xgrammar", "0.2.8", needs=("torch>=2", "numpy", "tvm-ffi>=0.1", "pydantic", extra))
    constraints.write_text("pydantic==2.14.3\nxgrammar==0.2.9\n")  # of which there is no wheel
    options = ["--isolated", "--no-index", "--find-links", str(index)]
    CARRY["fetch"](out, ["xgrammar>=0.2.8,<0.3", "pydantic>=2.9"], constraints, options)
    carried = sorted(wheel.name.split("-py3")[0] for wheel in out.iterdir())
    assert carried == [
        *("pydantic-2.14.3", "pydantic_core-2.50.4", "tvm_ffi-0.1.0", "typing_extensions-4.16.0"),
        "xgrammar-0.2.8",
    ]
    CARRY["check_together"](out, sys.executable, ["pydantic", "xgrammar"])
    with pytest.raises(CARRY["CarryError"], match="no-such-package"):
        CARRY["fetch"](out, ["no-such-package"], constraints, options)


@pytest.mark.slow
def test_wheels_that_refuse_each_other_are_not_carried(tmp_path: Path) -> None:
    make_wheel(tmp_path, "pydantic", "2.14.3", PICKY)
    make_wheel(tmp_path, "pydantic_core", "2.50.5", "version = '2.50.5'")
    with pytest.raises(CARRY["CarryError"], match="another core"):
        CARRY["check_together"](tmp_path, sys.executable, ["pydantic"])
    with pytest.raises(CARRY["CarryError"], match="rich comes from"):  # which is here, and not carried
        CARRY["check_together"](tmp_path, sys.executable, ["rich"])


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_packs_beside_what_the_machine_has() -> None:
    # Tests may run under a make of their own, whose flags would have this one print the directories it enters.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "-n", "-o", "stack/python", "gpu-first", "CARRY_PYTHON=py", "CARRY_STACK=stack/python"]
    run = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "py tools/gpu/pack.py --arch 90 --stack stack/python --out .gpu"


# -- on the machine


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`go.py` as on a GPU machine; answers in `tmp_path`."""
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("DEVICE", "cuda")
    (tmp_path / "logs").mkdir()
    found: dict[str, Any] = runpy.run_path(str(KIT / "go.py"))["main"].__globals__
    return found


def test_the_first_call_cannot_take_longer_than_a_command_may(go: dict[str, Any]) -> None:
    groups = [max(part.limit for part in group) for group in go["first"]()]
    ready = go["INSTALL_LIMIT"] + go["IMPORT_LIMIT"]
    assert ready + sum(groups) <= go["IN_ALL"] < 577 and "timeout -k 2 577 " in (KIT / "go.sh").read_text()
    assert {"runtime", "smoke", "step", "products", "mask"} <= set(go["PARTS"])


@pytest.mark.slow
def test_a_part_that_hangs_is_ended_with_all_its_processes(go: dict[str, Any], tmp_path: Path) -> None:
    deaf = (
        "import signal, subprocess, sys, time; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True);"
    )
    child = f"{deaf} subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    go["GRACE"] = 1
    begin = time.monotonic()
    row = go["run"](go["Part"]("hangs", 3, (sys.executable, "-c", child)))
    assert row["status"] is None and time.monotonic() - begin < 50
    said = (tmp_path / "summary.txt").read_text()
    assert "ENDED AT ITS LIMIT" in said and "| deaf" in said
    row = go["run"](go["Part"]("is not there", 3, ("no-such-program",)))
    assert row["status"] == 127 and "No such file" in (tmp_path / "summary.txt").read_text()


def test_failures_of_tests_are_listed_where_the_run_did_not_end(go: dict[str, Any], tmp_path: Path) -> None:
    lines = [
        "[gw1] [  1%] PASSED tests/gpu/test_a.py::test_one[a-1] ",
        *(f"[gw0] [  2%] FAILED tests/gpu/test_a.py::test_two[few pages {i}] " for i in range(3)),
        "[gw2] [  3%] SKIPPED tests/gpu/test_b.py::test_three ",
        "tests/gpu/test_b.py::test_four ",
        "E   AssertionError: no",
    ]
    row = go["tests_in"](lines)
    assert (row["passed"], row["failed"], row["skipped"], len(row["failed_cases"])) == (1, 3, 1, 3)
    said = (tmp_path / "summary.txt").read_text()
    assert said.count("FAILED tests/gpu/test_a.py::test_two") == go["MOST_CASES"]
    assert "1 passed, 3 failed, 1 skipped" in said and "1 x AssertionError: no" in said


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_packed_triton_cache_has_every_kernel_at_another_path(tmp_path: Path, go: dict[str, Any]) -> None:
    pack = runpy.run_path(str(KIT / "pack.py"))
    few = "triton_cache.TINY_LENGTHS = {torch.float32: (512,)}; triton_cache.BATCHES = (1,)"
    fill = "triton_cache.main(Path(sys.argv[1]), ['draft'])"
    script = f"import sys, torch, triton_cache; from pathlib import Path; {few}; {fill}"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (KIT, ROOT / "tests", *sys.path)))}

    def said(folder: Path) -> str:
        command = [sys.executable, "-c", script, str(folder)]
        run = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240)
        assert run.returncode == 0, run.stderr
        return run.stdout

    made = re.match(r"(\d+) Triton kernels, (\d+) of them compiled", said(tmp_path / "made"))
    assert made and int(made[1]) == int(made[2]) > 5
    (tmp_path / "carried").mkdir()
    pack["pack_cache"](tmp_path / "made", tmp_path / "carried" / "triton.tar.xz")
    shutil.rmtree(tmp_path / "made")
    go["HERE"], go["TRITON_CACHE"] = tmp_path / "carried", tmp_path / "there"
    go["unpack_cache"]()
    assert said(tmp_path / "there").startswith(f"{made[1]} Triton kernels, 0 of them compiled")


# -- all of it


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_kit_is_packed_and_rehearsed_without_a_gpu(tmp_path: Path) -> None:
    """From a folder that has `.gpu` and no checkout, with the weft that is installed here in the place of wheels."""
    folder = tmp_path / ".gpu"
    packing = [sys.executable, str(KIT / "pack.py"), "--rehearsal", "--stack", sys.executable]
    caching = ["--cache", str(tmp_path / "cache")]
    subprocess.run(
        [*packing, *caching, "--out", str(folder)], check=True, timeout=300, stdout=subprocess.DEVNULL
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    variables |= {"DEVICE": "cpu", "PYTHON": sys.executable, "GPU_JOBS": "2", "WORK": str(tmp_path / "work")}

    def call(*names: str) -> tuple[str, dict[str, dict[str, Any]]]:
        out = tmp_path / f"out-{names[0]}"
        command = ["bash", ".gpu/go.sh", *names]
        given = {**variables, "OUT": str(out)}
        run = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stdout + run.stderr
        assert len(run.stdout) < MOST_PRINTED
        reports = {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}
        assert not any(report.get("failures") for report in reports.values()), reports
        assert str(tmp_path) not in json.dumps(reports) and str(ROOT) not in json.dumps(reports)
        parts = {row["part"]: row for row in reports[f"{names[0]}-parts"]["rows"]}
        assert {part: row["status"] for part, row in parts.items()} == dict.fromkeys(parts, 0), run.stdout
        return run.stdout, reports

    said, reports = call("first")
    assert said.count("9 of 9 as the CPU's") == 4 and re.search(r"^in all \d+ s", said, re.MULTILINE)
    assert {"first-runtime", "first-step-quick", "first-products", "hostfunc", "mask-2"} <= set(reports)
    rows = {row["part"]: row for row in reports["first-parts"]["rows"]}
    assert rows["smoke"]["passed"] > 5 and rows["smoke"]["failed_cases"] == []
    tokens = [row["answer"] for row in reports["first-tokens-one"]["rows"]]
    assert all("first tokens that differ" not in answer for answer in tokens)
    _, reports = call("second", "step_more")
    assert "first-step-more" in reports
