"""Measures weft's attention on the CPU for each dtype of the cache.

    python benchmarks/cpu_attention.py [--threads 1] [--repeat 40] [--out DIRECTORY]

Rows of one new token attend to texts of 300 and 2000 tokens, in the shapes of SmolLM2 135M (9 heads, 3 of keys, of size
64) and of Llama 3.1 8B (32, 8, 128). Calls go through 8 layers in turn, so that keys come from memory as in a model.
The dtypes alternate; times are medians of a call, and `speed` is float32's time divided by the dtype's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from weft.models.memory import Pages
from weft.models.rope import Rope
from weft.ops.attention import Heads, KVLayer, Rows, attend
from weft.ops.cached import CACHED
from weft.runtime.host_memory import lazy_zeros
from weft_bench.report import Report

SHAPES = {"SmolLM2 135M": (9, 3, 64), "Llama 3.1 8B": (32, 8, 128)}
LAYERS, PAGE = 8, 16


def layers_of(pages: Pages, num_pages: int, dtype: torch.dtype) -> list[KVLayer]:
    """Layers full of the bytes 60, which are small numbers in every dtype."""
    memory = lazy_zeros((LAYERS, num_pages, PAGE, pages.size_in(dtype)), dtype)
    memory.view(torch.uint8).fill_(60)
    return [pages.of(layer) for layer in memory]


def measure(shape: str, batch: int, length: int, repeat: int) -> Iterator[dict[str, object]]:
    num_heads, kv_heads, size = SHAPES[shape]
    columns = -(-length // PAGE)
    table = (torch.randperm(batch * columns) + 1).view(batch, columns).int()
    rows = Rows(table, torch.full((batch,), length - 1), 1)
    heads = Heads(num_heads, Rope(theta=1e4).table(size, length), size**-0.5)
    qkv: Tensor = torch.randn(batch, (num_heads + 2 * kv_heads) * size)
    pages = Pages(kv_heads, size, size)
    layers = {name: layers_of(pages, 1 + batch * columns, dtype) for name, dtype in CACHED.items()}
    times: dict[str, list[float]] = {name: [] for name in CACHED}
    for _ in range(repeat):
        for name, found in times.items():
            for layer in layers[name]:
                begin = time.perf_counter()
                attend(qkv, layer, rows, heads)
                found.append(time.perf_counter() - begin)
    medians = {name: statistics.median(found[LAYERS:]) for name, found in times.items()}
    for name, seconds in medians.items():
        yield {
            "shape": shape,
            "rows": batch,
            "tokens": length,
            "dtype": name,
            "us": 1e6 * seconds,
            "speed": medians["float32"] / seconds,
        }


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    kinds = [(shape, batch, length) for shape in SHAPES for batch in (1, 8) for length in (300, 2000)]
    rows = [row for kind in kinds for row in measure(*kind, options.repeat)]
    report = Report("cpu_attention", rows, {"threads": options.threads})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
