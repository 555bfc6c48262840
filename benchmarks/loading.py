"""Measures the memory and the time of loading a model, each time in a fresh process.

    .venv/bin/python benchmarks/loading.py [--model smollm2] [--repeat 5] [--cold] [--out benchmarks/results]

A process imports weft and loads weft-tiny, so that libraries and threads are there. Then it loads the model. A row has
the medians over the processes:

- `weights_mb`: the bytes of the weights in memory, as `weft inspect` reports them.
- `peak_mb`, `after_mb`: the resident memory at its peak and after loading, minus that before.
- `peak_ratio`: `peak_mb` ÷ `weights_mb`.
- `load_s`: the time, and `cpu_s`: the processor time of all threads.

With `--cold` the system forgets the file before each load, so that it is read from the disk.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from weft.client.model_facts import ModelFacts
from weft.config import model_directory, package_model_path, weight_files
from weft.errors import InputError
from weft.models.loading import load_model
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report

CHILD = "--child"


def memory_mb(field: str) -> float:
    """Return a field of the process's status in MB: VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def child(path: str, dtype: str) -> None:
    """Load a model and print the figures as JSON."""
    load_model(package_model_path())
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the following
    before, begin, begin_cpu = memory_mb("VmRSS"), time.perf_counter(), time.process_time()
    model = load_model(path, dtype=dtype)
    figures = {
        "peak_mb": memory_mb("VmHWM") - before,
        "after_mb": memory_mb("VmRSS") - before,
        "load_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - begin_cpu,
    }
    print(json.dumps(figures))
    del model


def forget(directory: Path) -> None:
    """Let the system drop its copy of the weights' files from memory."""
    for name in weight_files(directory):
        file = os.open(directory / name, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def row(directory: Path, dtype: str, repeat: int, is_cold: bool) -> dict[str, Any]:
    """Return the medians over `repeat` processes."""
    weights_mb = ModelFacts.read(directory, torch.device("cpu"), dtype).weight_bytes / 1e6
    runs: list[dict[str, float]] = []
    for _ in range(repeat):
        if is_cold:
            forget(directory)
        command = [sys.executable, __file__, CHILD, str(directory), dtype]
        runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    ratio = medians["peak_mb"] / weights_mb
    return {"model": directory.name, "dtype": dtype, "weights_mb": weights_mb, "peak_ratio": ratio, **medians}


def run(model: str, dtypes: str, repeat: int, is_cold: bool) -> Report:
    """Return a row for each dtype."""
    if not Path("/proc/self/clear_refs").exists():
        raise InputError("the peak of memory is read from /proc, which Linux has")
    directory = model_directory(model)
    rows = [row(directory, dtype.strip(), repeat, is_cold) for dtype in dtypes.split(",")]
    return Report("loading-cold" if is_cold else "loading", rows, {"repeat": repeat})


def main(
    model: Annotated[str, typer.Option(help="A model's name or directory.")] = "smollm2",
    dtypes: Annotated[str, typer.Option(help="Dtypes of the weights, as of --dtype.")] = "auto,float32",
    repeat: Annotated[int, typer.Option(min=1, help="Processes for each row.")] = 5,
    cold: Annotated[bool, typer.Option("--cold", help="Read the file from the disk each time.")] = False,
    out: OutOption = None,
) -> None:
    """Measure the memory and the time of loading a model."""
    finish(measured(out, lambda: run(model, dtypes, repeat, cold)), out)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(*sys.argv[2:])
    else:
        script(main)
