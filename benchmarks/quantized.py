"""Measures products of quantised weights with rows in int8 on one core, by format, number of rows and instruction set.

    python benchmarks/quantized.py [--formats Q4_K Q8_0] [--sets avx2 avx512] [--core 0] [--out DIRECTORY]

Each product rotates over copies of a matrix, 512 MB together in pages of 2 MB, so that it reads the weights from
memory. `gb_s` are the bytes of weights that it reads in a second; `of_read` compares them with a plain read of as much
memory in the same run, by torch's sum of float32. `gflops` are the best of some runs. Times are those of the thread, so
that other processes disturb them less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from weft import _core
from weft.ops.formats import Activations, Format
from weft.ops.linear import Linear
from weft.ops.quantized import Quantized
from weft_bench.report import Report

ROWS = (1, 2, 4, 8, 16, 32, 64)
OUTPUTS, INPUTS, BYTES = 2048, 2048, 512 << 20
FORMATS = tuple(
    kind.name for kind in Format if kind.is_quantized and _core.can_multiply(kind, Activations.INT8)
)
SETS = ("plain", "avx2", "avx512")


def random_matrix(kind: Format) -> Quantized:
    """Random codes, and scales that are finite."""
    blocks = torch.randint(256, (OUTPUTS, INPUTS // kind.block.inputs, kind.block.bytes), dtype=torch.uint8)
    count = {Format.Q4_1: 2, Format.Q5_1: 2, Format.Q4_K: 2, Format.Q5_K: 2}.get(kind, 1)
    if kind is Format.MXFP4:
        blocks[..., 0] = 120
    elif kind >= Format.INT4_32:
        blocks[..., :4] = torch.tensor([0.01]).view(torch.uint8)
        if kind < Format.INT8_32:
            blocks[..., 4], blocks[..., 5:8] = 8, 0
    else:
        first = 208 if kind is Format.Q6_K else 0
        blocks[..., first : first + 2 * count] = torch.tensor([0.01] * count).half().view(torch.uint8)
    return Quantized(blocks.flatten(1), kind, INPUTS)


def rate(run: Callable[[], object], seconds: float) -> float:
    """How often `run` happens in a second of the thread: the best of some times."""
    best, num_runs, spent = 0.0, 1, 0.0
    while spent < seconds:
        begin = time.thread_time()
        for _ in range(num_runs):
            run()
        passed = max(time.thread_time() - begin, 1e-9)
        best, spent = max(best, num_runs / passed), spent + passed
        num_runs = max(1, int(num_runs * 0.01 / passed))  # 10 ms of them
    return best


def multiply(rotating: Iterator[Linear], x: torch.Tensor, out: torch.Tensor) -> None:
    next(rotating)(x, out=out)


def measure(kind: Format, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row of the report for each number of rows."""
    linear = Linear(random_matrix(kind), activations=Activations.INT8)
    size = linear.packed.memory.nbytes
    linears = [linear]
    while len(linears) * size < BYTES:
        linears.append(Linear(random_matrix(kind), activations=Activations.INT8))
    memory = torch.zeros(BYTES // 4)
    read = rate(memory.sum, seconds) * BYTES
    rotating = cycle(linears)
    for rows in ROWS:
        x, out = torch.randn(rows, INPUTS), torch.empty(rows, OUTPUTS)
        products = rate(partial(multiply, rotating, x, out), seconds)
        yield {
            "format": kind.name,
            "set": _core.instruction_set(),
            "rows": rows,
            "us": 1e6 / products,
            "gb_s": 1e-9 * size * products,
            "of_read": size * products / read,
            "gflops": 2e-9 * rows * OUTPUTS * INPUTS * products,
        }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["avx2", "avx512"])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--of-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of_this_process:
        os.sched_setaffinity(0, {options.core})
        torch.set_num_threads(1)
        torch.manual_seed(1)
        for name in options.formats:
            for row in measure(Format[name], options.seconds):
                print(json.dumps(row), flush=True)
        return
    rows = []
    for name in options.sets:
        command = [sys.executable, __file__, "--of-this-process", "--core", str(options.core)]
        command += ["--seconds", str(options.seconds), "--formats", *options.formats]
        done = subprocess.run(
            command,
            env={**os.environ, "WEFT_INSTRUCTION_SET": name},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows += [json.loads(line) for line in done.stdout.splitlines()]
    report = Report("quantized", rows, {"outputs": OUTPUTS, "inputs": INPUTS})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
