"""Measures weft's matrix products on the CPU, by the number of rows and by how they round their input rows.

    python benchmarks/products.py [--threads 1] [--seconds 0.2] [--activations float32 bfloat16] [--out DIRECTORY]

Weights are bfloat16. Their shapes are those of SmolLM2-135M and SmolLM2-1.7B. Products rotate over copies of a weight,
256 MB together, so that they read it from memory, as the products of a model do. `gflops` are the best of some runs,
and `gb_s` are the bytes of weights that these read in a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from weft.ops.formats import ACTIVATION_DTYPES, Activations
from weft.ops.linear import Linear
from weft_bench.report import Report

SHAPES = {
    "135M qkv": (960, 576),
    "135M gate and up": (3072, 576),
    "135M down": (576, 1536),
    "135M logits": (49152, 576),
    "1.7B qkv": (6144, 2048),
    "1.7B down": (2048, 8192),
}
"""The outputs and inputs of products."""

ROWS = (1, 8, 32, 64, 256)
BYTES = 256 << 20


def copies(outputs: int, inputs: int, activations: Activations) -> list[Linear]:
    """Copies of one weight, which together exceed the caches."""
    weight = (torch.randn(outputs, inputs) * inputs**-0.5).bfloat16()
    return [Linear(weight, activations=activations) for _ in range(max(1, BYTES // weight.nbytes))]


def best(linears: list[Linear], x: torch.Tensor, seconds: float) -> float:
    """The seconds of a product: the least mean of runs over some of the copies."""
    out = x.new_empty(x.shape[0], linears[0].num_outputs)
    rotating, least, num_products = cycle(linears), float("inf"), 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(num_products):
            next(rotating)(x, out=out)
        passed = time.perf_counter() - begin
        least = min(least, passed / num_products)
        num_products = max(1, min(len(linears), int(num_products * 0.01 / passed)))  # 10 ms of them
    return least


def measure(chosen: list[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row of the report for each shape, kind of activations and number of rows."""
    for name, (outputs, inputs) in SHAPES.items():
        for activations in chosen:
            linears = copies(outputs, inputs, ACTIVATION_DTYPES[activations])
            for rows in ROWS:
                taken = best(linears, torch.randn(rows, inputs), seconds)
                yield {
                    "product": name,
                    "activations": activations,
                    "rows": rows,
                    "us": 1e6 * taken,
                    "gflops": 2e-9 * rows * outputs * inputs / taken,
                    "gb_s": 1e-9 * 2 * outputs * inputs / taken,
                }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument(
        "--activations", nargs="+", choices=tuple(ACTIVATION_DTYPES), default=["float32", "bfloat16"]
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    rows = list(measure(options.activations, options.seconds))
    report = Report("products", rows, {"threads": options.threads})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
