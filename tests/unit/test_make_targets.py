"""`make test` leaves out declared marks alone, `make test-full` cases of products, and `make test-every` nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def selections(target: str) -> list[str]:
    """What each run of pytest in a target has for -m."""
    # Tests may run under a make of their own, whose flags would have this one print the directories it enters.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    command = ["make", "-n", "-o", ".venv/.weft-built", "-o", ".venv/.weft-packages", target]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return re.findall(r'-m pytest .*-m "?([^"\n]+)', run.stdout)


def test_what_is_left_out_is_declared() -> None:
    (quick,) = selections("test")
    assert quick.startswith("not (") and set(re.findall(r"\w+", quick)) - {"not", "or"} <= {
        line.split(":")[0] for line in MARKS
    }


def test_the_full_run_has_every_test_and_the_other_every_case() -> None:
    assert selections("test-full") == ["not serial and not full", "serial and not full"]
    assert selections("test-every")[-1] == "full"
