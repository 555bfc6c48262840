"""Measures the memory and the time of loading a model, each time in a fresh process.

    .venv/bin/python benchmarks/loading.py [--models smollm2] [--repeat 5] [--cold] [--out benchmarks/results]

`--models` are names, directories and GGUF files, with commas between them. A process imports weft and loads weft-tiny,
so that libraries and threads are there. Then it loads the model. A row has the medians over the processes:

- `file_mb`: the bytes of the files with weights.
- `weights_mb`: the bytes of the weights in memory, as `weft inspect` reports them.
- `peak_mb`, `after_mb`: the resident memory at its peak and after loading, minus that before.
- `peak_ratio`: `peak_mb` ÷ `weights_mb`. `file_ratio`: `peak_mb` ÷ `file_mb`.
- `load_s`: the time, and `cpu_s`: the processor time of all threads.

With `--cold` the system forgets the file before each load, so that it is read from the disk. The report of quantised
models is `loading-quantised.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from weft.client.model_facts import ModelFacts
from weft.config import model_directory, package_model_path
from weft.errors import InputError
from weft.models.loading import load_model
from weft.models.stored import stored_tensors
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


def forget(files: Iterable[Path]) -> None:
    """Let the system drop its copy of files from memory."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def row(
    directory: Path, facts: ModelFacts, name: str, dtype: str, repeat: int, is_cold: bool
) -> dict[str, Any]:
    """Return the medians over `repeat` processes."""
    files = {stored.path for stored in stored_tensors(directory).values()}
    sizes = {
        "file_mb": sum(path.stat().st_size for path in files) / 1e6,
        "weights_mb": facts.weight_bytes / 1e6,
    }
    runs: list[dict[str, float]] = []
    for _ in range(repeat):
        if is_cold:
            forget(files)
        command = [sys.executable, __file__, CHILD, str(directory), dtype]
        runs.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    ratios = {
        "peak_ratio": medians["peak_mb"] / sizes["weights_mb"],
        "file_ratio": medians["peak_mb"] / sizes["file_mb"],
    }
    return {"model": name, "dtype": dtype, **sizes, **ratios, **medians}


def run(models: str, dtypes: str, repeat: int, is_cold: bool) -> Report:
    """Return a row for each model and dtype."""
    if not Path("/proc/self/clear_refs").exists():
        raise InputError("the peak of memory is read from /proc, which Linux has")
    rows, is_quantised = [], False
    for model in models.split(","):
        directory = model_directory(model.strip())
        for dtype in dtypes.split(","):
            facts = ModelFacts.read(directory, torch.device("cpu"), dtype.strip())
            is_quantised |= bool(facts.headers.matrix_formats)
            rows.append(row(directory, facts, Path(model.strip()).stem, dtype.strip(), repeat, is_cold))
    name = "loading" + "-quantised" * is_quantised + "-cold" * is_cold
    return Report(name, rows, {"repeat": repeat})


def main(
    models: Annotated[
        str, typer.Option(help="Names, directories or GGUF files of models, with commas between them.")
    ] = "smollm2",
    dtypes: Annotated[str, typer.Option(help="Dtypes of the weights, as of --dtype.")] = "auto,float32",
    repeat: Annotated[int, typer.Option(min=1, help="Processes for each row.")] = 5,
    cold: Annotated[bool, typer.Option("--cold", help="Read the file from the disk each time.")] = False,
    out: OutOption = None,
) -> None:
    """Measure the memory and the time of loading models."""
    finish(measured(out, lambda: run(models, dtypes, repeat, cold)), out)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(*sys.argv[2:])
    else:
        script(main)
