"""weft's CPU kernels of a decode step against torch's own operations, at weft-tiny's shapes.

    python benchmarks/cpu_kernels.py [--threads 2] [--repeat 201] [--length 256] [--out benchmarks/results]

Each kernel of csrc/kernels that stands for operations of torch runs in turn with them, on the same tensors in float32:
a batch of sequences that hold `--length` tokens, with 1 new token each or 6 (5 drafts). `calls` is how often a step of
weft-tiny does this; `step` adds them up. What both compute is compared first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from weft.bench.report import Report
from weft.models.config import Rope
from weft.ops import attention_cpu
from weft.ops.attention import kv_plan, paged_attention, rotate_write_
from weft.ops.few_rows import FEW_ROWS, few_rows_linear, panels_of
from weft.ops.rms_norm import rms_norm
from weft.ops.silu_mul import silu_mul

LAYERS, HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, DIM, PAGE, EPS = 5, 192, 512, 1536, 6, 3, 32, 16, 1e-5
BATCHES, WIDTHS = (1, 4, 16), (1, 6)


@dataclass
class Pair:
    """One operation both ways; each returns what it computed."""

    name: str
    calls: int
    weft: Callable[[], Tensor]
    torch: Callable[[], Tensor]


def products(rows: int) -> Iterator[Pair]:
    """The projections of a step and its logits."""
    shapes = {
        "qkv": (LAYERS, HIDDEN, (HEADS + 2 * KV_HEADS) * DIM),
        "output": (LAYERS, HEADS * DIM, HIDDEN),
        "gate_up": (LAYERS, HIDDEN, 2 * INNER),
        "down": (LAYERS, INNER, HIDDEN),
        "logits": (1, HIDDEN, VOCAB),
    }
    for name, (calls, inputs, outputs) in shapes.items():
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
        panels, turned = panels_of(weight), weight.t().contiguous()
        yield Pair(
            f"product: {name}",
            calls,
            lambda x=x, panels=panels, outputs=outputs: few_rows_linear(x, panels, outputs),
            lambda x=x, turned=turned: torch.mm(x, turned),
        )


def pointwise(rows: int) -> Iterator[Pair]:
    """Norms and the activation."""
    x, weight, gate_up = torch.randn(rows, HIDDEN), torch.rand(HIDDEN), torch.randn(rows, 2 * INNER)
    gate, up = gate_up.split(INNER, 1)
    yield Pair(
        "RMS norm",
        2 * LAYERS + 1,
        lambda: rms_norm(x, weight, EPS),
        lambda: F.rms_norm(x, (HIDDEN,), weight, EPS),
    )
    yield Pair("SwiGLU", LAYERS, lambda: silu_mul(gate_up), lambda: F.silu(gate).mul_(up))


def over_pages(batch: int, width: int, length: int) -> Iterator[Pair]:
    """Rotation and writing to the pages, and attention over them."""
    columns = -(-length // PAGE)
    cache = torch.randn(1 + batch * columns, PAGE, 2, KV_HEADS, DIM)
    table = (torch.randperm(batch * columns) + 1).view(batch, columns).int()
    positions = torch.arange(length - width, length).repeat(batch, 1)
    slots, rotary = kv_plan(table, positions, Rope(theta=1e4).table(DIM, length), PAGE)
    # A rotation of the same values again and again leaves their size as it is.
    qkv = torch.randn(batch * width, (HEADS + 2 * KV_HEADS) * DIM)
    mine, other, scratch = qkv.clone(), qkv.clone(), cache.clone()
    written, queries = 2 * KV_HEADS * DIM, HEADS * DIM

    def rotate() -> Tensor:
        rotate_write_(mine, scratch, slots, rotary, HEADS)
        return mine[:, :queries]

    def rotate_by_torch() -> Tensor:
        pairs = other.view(batch * width, -1, DIM // 2, 2).narrow(1, 0, HEADS + KV_HEADS)
        torch.view_as_complex(pairs).mul_(torch.view_as_complex(rotary).unsqueeze(1))
        scratch.view(-1, written).index_copy_(0, slots, other.narrow(1, queries, written))
        return other[:, :queries]

    q, scale = torch.randn(batch, width, HEADS, DIM), DIM**-0.5

    def attend_by_torch() -> Tensor:
        rows = [attention_cpu._gather(cache, row, length) for row in table]
        return attention_cpu._decode_rows(q, rows, [length] * batch, scale)

    yield Pair("rotate and write", LAYERS, rotate, rotate_by_torch)
    yield Pair(
        "attention", LAYERS, lambda: paged_attention(q, cache, table, positions, scale), attend_by_torch
    )


def seconds(pair: Pair, repeat: int) -> tuple[float, float]:
    """Medians of weft's way and of torch's, which run in turn."""
    torch.testing.assert_close(pair.weft(), pair.torch(), rtol=1e-3, atol=1e-3)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat + 10):
        for way, found in zip((pair.weft, pair.torch), times, strict=True):
            begin = time.perf_counter()
            way()
            found.append(time.perf_counter() - begin)
    return statistics.median(times[0][10:]), statistics.median(times[1][10:])


def measure(batch: int, width: int, length: int, repeat: int) -> Iterator[dict[str, object]]:
    """Rows of the report for one kind of step, and their sum."""
    rows = batch * width
    assert rows <= FEW_ROWS
    total = [0.0, 0.0]
    for pair in (*products(rows), *pointwise(rows), *over_pages(batch, width, length)):
        found = seconds(pair, repeat)
        total = [before + pair.calls * one for before, one in zip(total, found, strict=True)]
        yield row_of(pair.name, batch, width, pair.calls, *found)
    yield row_of("step", batch, width, 1, *total)


def row_of(name: str, batch: int, width: int, calls: int, ours: float, theirs: float) -> dict[str, object]:
    return {
        "operation": name,
        "batch": batch,
        "width": width,
        "calls": calls,
        "weft_us": 1e6 * ours,
        "torch_us": 1e6 * theirs,
        "ratio": theirs / ours,
    }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=201)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    kinds = [(batch, width) for batch in BATCHES for width in WIDTHS]
    rows = [row for kind in kinds for row in measure(*kind, options.length, options.repeat)]
    steps = [row for row in rows if row["operation"] == "step"]
    ratios = {f"step_ratio_batch_{row['batch']}_width_{row['width']}": row["ratio"] for row in steps}
    report = Report("cpu_kernels", rows, {"length": options.length, "threads": options.threads, **ratios})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
