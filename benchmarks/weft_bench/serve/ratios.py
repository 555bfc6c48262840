"""Compares two loads that alternate (A B B A). The ratio is the median over rounds.

Answers have a fixed length, so that both sides do the same work. There are no drafts and no prefix reuse.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from weft_bench.serve.clients import Clients, Load
from weft_bench.serve.loop_time import measure_loop
from weft_bench.serve.setup import Setup
from weft_bench.serve.workload import Workload

MANY = 32
TOKENS = 64
LOOP_TOKENS = 256
"""The length of an answer in tokens. It is so large that requests seldom join or end, and most iterations run a
whole batch."""
PROMPTS = 256

Measure = Callable[[], float]
"""Measures a window, and returns its throughput."""


def plain(setup: Setup, overlap: str | None = None) -> Setup:
    """Return the setup for 32 clients, without drafts and prefix reuse and with the default policy. `overlap`
    replaces its own if given."""
    return replace(
        setup,
        speculation="none",
        policy=Setup.policy,
        reuse=False,
        max_batch=MANY,
        overlap=setup.overlap if overlap is None else overlap,
    )


def compare(setup: Setup, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Return three ratios of throughput: 32 clients to one, guided requests to unguided ones, and overlap to no
    overlap, with half of the requests guided."""
    workload = Workload.heldout(setup.model, PROMPTS, TOKENS)
    with plain(setup).serving(workload, MANY) as clients:
        many, one = side(clients, Load(MANY), seconds), side(clients, Load(1), seconds)
        guided = side(clients, Load(MANY, guided_percent=100), seconds)
        rows = [
            ratio(f"{MANY} clients / 1 client", many, one, rounds),
            ratio("100 % guided / 0 %", guided, many, rounds),
        ]
    half = Load(MANY, guided_percent=50)
    with ExitStack() as stack:
        on, off = (
            side(stack.enter_context(plain(setup, overlap).serving(workload, MANY)), half, seconds)
            for overlap in ("on", "off")
        )
        rows.append(ratio("overlap on / off", on, off, rounds))
    return rows


def side(clients: Clients, load: Load, seconds: float) -> Measure:
    """Return a function that measures the throughput of a load."""
    return lambda: clients.window(load, seconds).tokens_per_s


def ratio(name: str, first: Measure, second: Measure, rounds: int) -> dict[str, Any]:
    """Return the ratio of two throughputs, with the median of each side, and the smallest and largest ratio of a
    round."""
    firsts, seconds = [], []
    for _ in range(rounds):
        a, b, b_again, a_again = first(), second(), second(), first()
        firsts.append((a + a_again) / 2)
        seconds.append((b + b_again) / 2)
    ratios = [a / b for a, b in zip(firsts, seconds, strict=True)]
    return {
        "compared": name,
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "tokens_per_s": [round(median(firsts)), round(median(seconds))],
    }


def loop_times(setup: Setup, seconds: float) -> list[dict[str, Any]]:
    """Return the loop's own time per iteration with 32 requests, all unguided and all guided."""
    workload = Workload.heldout(setup.model, PROMPTS, LOOP_TOKENS)
    with plain(setup).serving(workload, MANY) as clients:
        return [measure_loop(clients, Load(MANY, guided_percent=percent), seconds) for percent in (0, 100)]
