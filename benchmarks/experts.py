"""Compares weft's mixture of experts on the CPU with transformers' implementations.

    python benchmarks/experts.py [--threads 2] [--seconds 0.3] [--weights bfloat16] [--out DIRECTORY]

All compute the experts of one Qwen3-MoE layer, with hidden size 512 and random weights and choices, without the router.
`experts` is their number E, `chosen` the number k for each row, and `inner` the size of each. weft's activations are
float32; transformers' have the weights' dtype. Results are compared before timing. A time is the median of runs that
alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from weft.models.config import DTYPES
from weft.models.transformers_experts import pack_experts
from weft_bench.report import Report

HIDDEN = 512
SHAPES = ((8, 2, 1024), (16, 4, 512), (64, 2, 256), (64, 8, 256))
ROWS = (1, 8, 32, 128, 512)
THEIRS = ("eager", "grouped_mm")
TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def measure(shape: tuple[int, int, int], dtype: torch.dtype, seconds: float) -> list[dict[str, object]]:
    """The rows of the report for experts of one shape."""
    experts, chosen, inner = shape
    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=inner, num_experts=experts)
    module = Qwen3MoeExperts(config).to(dtype)
    for parameter in module.parameters():
        parameter.normal_(0, 0.05)
    packed = pack_experts(module)
    rows = []
    for count in ROWS:
        x = torch.randn(count, HIDDEN).to(dtype)
        index = torch.rand(count, experts).topk(chosen).indices
        weights = torch.rand(count, chosen)
        wide = x.float()

        def run(name: str) -> torch.Tensor:
            if name == "weft":
                return packed(wide, index, weights)
            config._experts_implementation = name
            return module(x, index, weights.to(dtype))

        names = ("weft", *THEIRS)
        expected = run("weft")
        for name in THEIRS:
            difference = (run(name).float() - expected).abs().max() / expected.abs().max()
            assert difference < TOLERANCE[dtype], f"{name} differs by {difference}"
        times: dict[str, list[float]] = {name: [] for name in names}
        end = time.perf_counter() + seconds * len(names)
        while time.perf_counter() < end or len(times["weft"]) < 5:
            for name in names:
                begin = time.perf_counter()
                run(name)
                times[name].append(time.perf_counter() - begin)
        medians = {f"{name}_us": 1e6 * statistics.median(found) for name, found in times.items()}
        best = min(medians[f"{name}_us"] for name in THEIRS)
        rows.append(
            {
                "experts": experts,
                "chosen": chosen,
                "inner": inner,
                "rows": count,
                "experts_read": index.unique().numel(),
                **medians,
                "ratio": best / medians["weft_us"],
            }
        )
    return rows


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
    rows = [row for shape in SHAPES for row in measure(shape, DTYPES[options.weights], options.seconds)]
    settings = {"hidden": HIDDEN, "threads": options.threads, "weights": options.weights}
    report = Report(
        "experts", rows, {**settings, "median_ratio": statistics.median(row["ratio"] for row in rows)}
    )
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
