"""Compares weft's CPU kernels of a decode step with torch's operations, at weft-tiny's shapes.

    python benchmarks/cpu_kernels.py [--threads 2] [--repeat 201] [--length 256] [--weights float16] [--out
DIRECTORY]

Each operation of a layer alternates with the equivalent torch operations on the same float32 tensors. The batch has
sequences of `--length` tokens, with 1 new token each or 6 (5 drafts). Only weft uses 16-bit weights; torch gets
their values in float32. `calls` is the number of times that weft-tiny runs an operation in a step, and `step` is the
sum over all operations. Results are compared before timing.
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

from weft.models.config import DTYPES
from weft.models.memory import Pages
from weft.models.rope import Rope
from weft.ops.activation import SWIGLU
from weft.ops.attention import Heads, Rows, attend
from weft.ops.linear import Linear, Norm
from weft.ops.rows import embed
from weft_bench.report import Report

LAYERS, HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, DIM, PAGE, EPS = 5, 192, 512, 1536, 6, 3, 32, 16, 1e-5
BATCHES, WIDTHS = (1, 4, 16), (1, 6)


@dataclass
class Pair:
    """The same operation in weft and in torch. Each function returns its result."""

    name: str
    calls: int
    weft: Callable[[], Tensor]
    torch: Callable[[], Tensor]


def products(rows: int, dtype: torch.dtype) -> Iterator[Pair]:
    """Yield the matrix products of a step, with the norm before or the addition after them."""
    norm = Norm(torch.rand(HIDDEN), EPS)

    def weights(outputs: int, inputs: int) -> Tensor:
        return (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)

    def normed(x: Tensor) -> Tensor:
        return F.rms_norm(x, (HIDDEN,), norm.weight, EPS)

    x = torch.randn(rows, HIDDEN)
    for name, calls, outputs in (("qkv", LAYERS, (HEADS + 2 * KV_HEADS) * DIM), ("logits", 1, VOCAB)):
        weight = weights(outputs, HIDDEN)
        linear, turned = Linear(weight), weight.float().t().contiguous()
        yield Pair(
            f"norm and product: {name}",
            calls,
            lambda linear=linear: linear(x, norm),
            lambda turned=turned: normed(x) @ turned,
        )
    for name, inputs in (("output", HEADS * DIM), ("down", INNER)):
        weight, y = weights(HIDDEN, inputs), torch.randn(rows, inputs)
        linear, turned = Linear(weight), weight.float().t().contiguous()
        yield Pair(
            f"product and sum: {name}",
            LAYERS,
            lambda linear=linear, y=y: linear(y, residual=x),
            lambda turned=turned, y=y: torch.addmm(x, y, turned),
        )
    weight = weights(2 * INNER, HIDDEN)
    gated, both = Linear(weight, activation=SWIGLU, gated=True), weight.float().t().contiguous()

    def gate_by_torch() -> Tensor:
        gate, up = (normed(x) @ both).split(INNER, 1)
        return F.silu(gate).mul_(up)

    yield Pair("norm, product and SwiGLU", LAYERS, lambda: gated(x, norm), gate_by_torch)


def embedding(rows: int, dtype: torch.dtype) -> Iterator[Pair]:
    weight, tokens = torch.randn(VOCAB, HIDDEN).to(dtype), torch.randint(0, VOCAB, (rows,))
    widened = weight.float()
    yield Pair("embedding", 1, lambda: embed(weight, tokens, torch.float32), lambda: widened[tokens])


def over_pages(batch: int, width: int, length: int) -> Iterator[Pair]:
    """Yield rotary embedding, the write to the pages and attention, which are a single operation in weft."""
    columns = -(-length // PAGE)
    memory = torch.randn(1 + batch * columns, PAGE, 2 * KV_HEADS * DIM)
    table = (torch.randperm(batch * columns) + 1).view(batch, columns).int()
    base, rotary, scale = torch.full((batch,), length - width), Rope(theta=1e4).table(DIM, length), DIM**-0.5
    rows, heads = Rows(table, base, width), Heads(HEADS, rotary, scale)
    given = torch.randn(batch * width, (HEADS + 2 * KV_HEADS) * DIM)
    qkv, scratch = given.clone(), memory.clone().unflatten(2, (2, KV_HEADS, DIM))
    layer = Pages(KV_HEADS, DIM, DIM).of(memory)
    turn = torch.view_as_complex(rotary[length - width :])[None, :, None]
    mask = torch.ones(width, length, dtype=torch.bool).tril_(length - width)

    def by_weft() -> Tensor:
        return attend(qkv.copy_(given), layer, rows, heads)

    def by_torch() -> Tensor:
        new = given.clone().view(batch, width, -1, DIM)
        pairs = new[:, :, : HEADS + KV_HEADS].unflatten(3, (-1, 2))
        torch.view_as_complex(pairs).mul_(turn)
        q, k, v = new.split((HEADS, KV_HEADS, KV_HEADS), 2)
        text = scratch[table.long()].flatten(1, 2)[:, :length]
        text[:, length - width :] = torch.stack((k, v), 2)
        scratch[table.long()] = F.pad(text, (0, 0, 0, 0, 0, 0, 0, -length % PAGE)).unflatten(
            1, (columns, PAGE)
        )
        keys, values = text.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=mask, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(batch * width, -1)

    yield Pair("rotate, write, attend", LAYERS, by_weft, by_torch)


def seconds(pair: Pair, repeat: int) -> tuple[float, float]:
    """Return the median seconds of weft and of torch, whose runs alternate."""
    torch.testing.assert_close(pair.weft(), pair.torch(), rtol=1e-3, atol=1e-3)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat + 10):
        for way, found in zip((pair.weft, pair.torch), times, strict=True):
            begin = time.perf_counter()
            way()
            found.append(time.perf_counter() - begin)
    return statistics.median(times[0][10:]), statistics.median(times[1][10:])


def measure(
    batch: int, width: int, length: int, repeat: int, dtype: torch.dtype
) -> Iterator[dict[str, object]]:
    """Yield a row of the report for each operation of one kind of step, and for their sum."""
    rows = batch * width
    total = [0.0, 0.0]
    for pair in (*embedding(rows, dtype), *products(rows, dtype), *over_pages(batch, width, length)):
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
    parser.add_argument("--weights", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    dtype = DTYPES[options.weights]
    kinds = [(batch, width) for batch in BATCHES for width in WIDTHS]
    rows = [row for kind in kinds for row in measure(*kind, options.length, options.repeat, dtype)]
    steps = [row for row in rows if row["operation"] == "step"]
    ratios = {f"step_ratio_batch_{row['batch']}_width_{row['width']}": row["ratio"] for row in steps}
    settings = {"length": options.length, "threads": options.threads, "weights": options.weights}
    report = Report("cpu_kernels", rows, settings | ratios)
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
