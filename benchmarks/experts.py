"""Compares weft's mixture of experts on the CPU with transformers' implementations.

    python benchmarks/experts.py [--threads 2] [--seconds 0.3] [--weights bfloat16] [--out DIRECTORY]

All compute the experts of one Qwen3-MoE layer, with hidden size 512 and random weights and choices, without the router.
`experts` is their number, `chosen` the number for each row, and `inner` the size of each. weft's activations are
float32; transformers' have the weights' dtype. Results are compared before timing. Times are medians of runs that
alternate, and `ratio` is the faster of transformers' two implementations ÷ weft.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from weft.models.config import DTYPES
from weft.ops.activation import SWIGLU
from weft.ops.experts import Experts
from weft_bench.report import Report

HIDDEN = 512
SHAPES = ((8, 2, 1024), (16, 4, 512), (64, 2, 256), (64, 8, 256))
ROWS = (1, 8, 32, 128, 512)
THEIRS = ("eager", "grouped_mm")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@dataclass
class Layer:
    """An experts module of transformers, its weights packed by weft, and what they are applied to."""

    module: Qwen3MoeExperts
    packed: Experts
    x: Tensor
    index: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        dtype = self.module.down_proj.dtype
        self.narrow_x, self.narrow_weights = self.x.to(dtype), self.weights.to(dtype)

    def run(self, name: str) -> Tensor:
        if name == "weft":
            return self.packed(self.x, self.index, self.weights)
        self.module.config._experts_implementation = name
        result: Tensor = self.module(self.narrow_x, self.index, self.narrow_weights)
        return result

    def medians(self, seconds: float) -> dict[str, float]:
        """Return the median time of each implementation."""
        expected = self.run("weft")
        for name in THEIRS:
            difference = (self.run(name).float() - expected).abs().max() / expected.abs().max()
            assert difference < TOLERANCE[self.narrow_x.dtype], f"{name} differs by {difference}"
        times: dict[str, list[float]] = {name: [] for name in ("weft", *THEIRS)}
        end = time.perf_counter() + seconds * len(times)
        while time.perf_counter() < end or len(times["weft"]) < 5:
            for name, found in times.items():
                begin = time.perf_counter()
                self.run(name)
                found.append(time.perf_counter() - begin)
        return {name: statistics.median(found) for name, found in times.items()}


def measure(shape: tuple[int, int, int], dtype: torch.dtype, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield a row of the report for each number of rows."""
    experts, chosen, inner = shape
    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=inner, num_experts=experts)
    module = Qwen3MoeExperts(config).to(dtype)
    for parameter in module.parameters():
        parameter.normal_(0, 0.05)
    packed = Experts(*module.gate_up_proj.chunk(2, 1), module.down_proj, SWIGLU)
    for rows in ROWS:
        index = torch.rand(rows, experts).topk(chosen).indices
        layer = Layer(module, packed, torch.randn(rows, HIDDEN), index, torch.rand(rows, chosen))
        found = layer.medians(seconds)
        yield {
            "experts": experts,
            "chosen": chosen,
            "inner": inner,
            "rows": rows,
            "experts_read": index.unique().numel(),
            **{f"{name}_us": 1e6 * each for name, each in found.items()},
            "ratio": min(found[name] for name in THEIRS) / found["weft"],
        }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--weights", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    dtype = DTYPES[options.weights]
    rows = [row for shape in SHAPES for row in measure(shape, dtype, options.seconds)]
    settings = {"hidden": HIDDEN, "threads": options.threads, "weights": options.weights}
    ratios = {"median_ratio": statistics.median(row["ratio"] for row in rows)}
    report = Report("experts", rows, settings | ratios)
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
