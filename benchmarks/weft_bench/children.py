"""Runs each benchmark in a separate process, so that a broken device or a stall does not affect the next."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from weft_bench.report import Report


def run_benchmark(command: Sequence[str], name: str, out: Path | None, seconds: float | None) -> str | None:
    """Run `weft bench` with the arguments `command`, for at most `seconds`. Returns the reason of a failure, or
    None. The reason is also added to the report `out`/NAME.json, unless the report already has one."""
    try:
        code = subprocess.run(
            [sys.executable, "-m", "weft.cli", "bench", *command], timeout=seconds
        ).returncode
        why = None if code == 0 else f"its process ended with {code}"
    except subprocess.TimeoutExpired:
        why = f"it took more than {seconds:g} s"
    if why is not None and out is not None:
        _note(out, name, why)
    return why


def _note(folder: Path, name: str, why: str) -> None:
    path = folder / f"{name}.json"
    if not path.is_file():
        Report(name, [], failures=[{"error": why}]).write(folder)
        return
    written = json.loads(path.read_text())
    failures = written.setdefault("failures", [])
    summary = written.get("summary", {})
    if summary.get("unfinished") or not failures:
        failures.append({**summary.get("measuring", {}), "error": why})
        path.write_text(json.dumps(written, indent=2) + "\n")
