"""Short forms of `weft bench`, with their rows in the summary.

bench.py compile     compile xgrammar's CUDA kernel, for `mask`
bench.py mask        weft's mask kernel and xgrammar's, for 64 rows and for one
bench.py hostfunc    the cost of a host function
bench.py overhead    the cost of a guide at the shape of Llama 3.1 8B, by cause
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from answers import DEVICE, ON_GPU, OUT, answers, write_and_say

from weft_bench.engine import overhead
from weft_bench.engine.models import shape_of
from weft_bench.report import Report
from weft_bench.runtime import hostfunc, mask

MASKS = {"mask-64": (64, 131072, 11), "mask-1": (1, 128256, 11)} if ON_GPU else {"mask-2": (2, 1024, 2)}
"""Rows, vocabulary size and repetitions, by name."""


def compile_masks() -> dict[str, float]:
    import xgrammar

    begin = time.perf_counter()
    if ON_GPU:
        logits = torch.zeros(1, 64, device="cuda")
        bits = torch.full((1, 2), -1, dtype=torch.int32, device="cuda")
        xgrammar.apply_token_bitmask_inplace(logits, bits, backend="cuda")
        torch.cuda.synchronize()
    return {"xgrammar's kernel, s": time.perf_counter() - begin}


def run_mask() -> None:
    for name, (rows, vocab, repeat) in MASKS.items():
        report = mask.run(DEVICE, rows=rows, vocab=vocab, repeat=repeat)
        report.name = name
        lines: list[dict[str, Any]] = []
        for row in report.rows:
            ratios = {
                f"{key.removesuffix('_over_weft')} over weft": value
                for key, value in row.items()
                if key.endswith("_over_weft")
            }
            head = f"{row['dtype']}, {row['allowed_percent']:g} % allowed: weft us"
            lines.append({head: row["weft_ms"] * 1e3, **ratios})
        write_and_say(report, lines)


def run_hostfunc() -> None:
    write_and_say(hostfunc.run(DEVICE) if ON_GPU else hostfunc.run(DEVICE, launches=50, repeat=3))


def run_overhead() -> None:
    shape = shape_of("llama-8b-eagle3" if ON_GPU else "small")
    batches, iterations = ((1, 4), 48) if ON_GPU else ((1,), 4)
    report = overhead.run(
        DEVICE, shape=shape, batches=batches, iterations=iterations, out=OUT / "results", with_random=False
    )
    write_and_say(report, [*report.rows, *tables(report)])


def tables(report: Report) -> list[dict[str, Any]]:
    """Return the rows of the tables in a report's summary."""
    return [row for value in report.summary.values() if isinstance(value, list) for row in value[:10]]


RUN = {"mask": run_mask, "hostfunc": run_hostfunc, "overhead": run_overhead}

if __name__ == "__main__":
    which = sys.argv[1]
    if which == "compile":
        with answers("compile") as part:
            part.ask("compile", compile_masks)
    else:
        RUN[which]()
