"""Measures the application of token masks: weft's kernel, xgrammar's and torch's masked_fill_ on the same logits.

Every way is first checked against masked_fill. Then they alternate, so that a busy machine slows all alike.
masked_fill_ gets a ready bool mask, so its time does not include unpacking the bits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import xgrammar as xgr
from torch import Tensor
from torch.utils import cpp_extension

from weft.ops.token_mask import apply_token_bitmask_
from weft.runtime import get
from weft.runtime.interface import Runtime
from weft_bench.report import Report
from weft_bench.rows import Rows

Way = Callable[[Tensor], object]
"""Masks the given logits in place."""

DTYPES = (torch.float32, torch.bfloat16)
ALLOWED = (0.001, 0.5, 0.99)


def run(device: str = "auto", rows: int = 64, vocab: int = 131072, repeat: int = 21) -> Report:
    """Return a row for each dtype and share of allowed tokens: milliseconds per call, as the median of `repeat`, and
    ratios to weft's."""
    runtime = get(device)
    results = Rows("mask")
    for dtype in DTYPES:
        for allowed in ALLOWED:
            label = str(dtype).removeprefix("torch.")
            with results.trying(dtype=label, allowed_percent=100 * allowed):
                result = measure(runtime, rows, vocab, dtype, allowed, repeat, results)
                ratios = {
                    f"{name}_over_weft": ms / result["weft"] for name, ms in result.items() if name != "weft"
                }
                times = {f"{name}_ms": ms for name, ms in result.items()}
                results.append({"dtype": label, "allowed_percent": 100 * allowed, **times, **ratios})
    return results.report(summary(results, runtime, rows, vocab))


def summary(results: list[dict[str, Any]], runtime: Runtime, rows: int, vocab: int) -> dict[str, Any]:
    """Return the shape, and the smallest ratio to xgrammar for masks that block at least half of the tokens."""
    ratios = [
        ratio
        for row in results
        if row["allowed_percent"] <= 50
        for name, ratio in row.items()
        if name.startswith("xgrammar") and name.endswith("_over_weft")
    ]
    return {
        "device": str(runtime.device),
        "rows": rows,
        "vocab": vocab,
        "threads": torch.get_num_threads(),
        "least_xgrammar_over_weft": min(ratios, default=None),
    }


def measure(
    runtime: Runtime,
    rows: int,
    vocab: int,
    dtype: torch.dtype,
    allowed: float,
    repeat: int,
    failures: Rows,
) -> dict[str, float]:
    """Return the median milliseconds per call of each way. If another library fails, the error is added to
    `failures`, and its way is left out."""
    generator = torch.Generator().manual_seed(0)
    allowed_NV = torch.rand(rows, vocab, generator=generator) < allowed
    logits = torch.randn(rows, vocab, generator=generator).to(dtype)
    expected = logits.masked_fill(~allowed_NV, float("-inf"))
    bitmask, blocked = pack(allowed_NV).to(runtime.device), (~allowed_NV).to(runtime.device)
    ways = dict(all_ways(bitmask, blocked))
    calls = {}

    def prepare(name: str, way: Way) -> None:
        own = logits.to(runtime.device, copy=True)
        way(own)
        runtime.synchronize()
        if not torch.equal(own.cpu(), expected):
            raise AssertionError(f"{name} masks wrongly")
        calls[name] = prepared(runtime, partial(way, own))

    for name, way in ways.items():
        if name == "weft":
            prepare(name, way)
            continue
        with failures.trying(way=name, dtype=dtype, allowed=allowed):
            prepare(name, way)
    return take_turns(calls, repeat)


def all_ways(bitmask: Tensor, blocked: Tensor) -> Iterable[tuple[str, Way]]:
    """Yield the ways with their names: weft's, torch's, and each of xgrammar's kernels for the device."""
    yield "weft", lambda logits: apply_token_bitmask_(logits, bitmask)
    yield "torch", lambda logits: logits.masked_fill_(blocked, float("-inf"))
    if not bitmask.is_cuda:
        yield "xgrammar", lambda logits: xgr.apply_token_bitmask_inplace(logits, bitmask)
        return
    yield "xgrammar_triton", lambda logits: xgr.apply_token_bitmask_inplace(logits, bitmask, backend="triton")
    if (
        cpp_extension.CUDA_HOME is not None and cpp_extension.is_ninja_available()
    ):  # it compiles when it is first used
        yield "xgrammar_cuda", lambda logits: xgr.apply_token_bitmask_inplace(logits, bitmask, backend="cuda")


def prepared(runtime: Runtime, call: Callable[[], object]) -> Callable[[], float]:
    """Return a function that makes the call and returns its seconds. On CUDA it averages many calls in a graph, so
    that only GPU time counts."""
    if runtime.device.type == "cpu":
        return partial(seconds_of, call)
    calls, stream = 50, runtime.stream()

    def launched() -> None:
        call()

    with runtime.capture(stream) as graph:
        for _ in range(calls):
            stream.launch(launched)

    def replay() -> None:
        graph.replay()
        stream.synchronize()

    return lambda: seconds_of(replay) / calls


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def take_turns(calls: dict[str, Callable[[], float]], repeat: int) -> dict[str, float]:
    """Return the median milliseconds of each call, after a round that does not count."""
    rounds = [{name: call() for name, call in calls.items()} for _ in range(repeat + 1)][1:]
    return {name: statistics.median(r[name] for r in rounds) * 1e3 for name in calls}


def pack(allowed_NV: Tensor) -> Tensor:
    """Pack a bool tensor into mask words, int32 [n, vocab / 32]. `vocab` must be a multiple of 32."""
    words = (allowed_NV.view(len(allowed_NV), -1, 32).long() << torch.arange(32)).sum(-1)
    return words.where(words < 2**31, words - 2**32).to(torch.int32)
