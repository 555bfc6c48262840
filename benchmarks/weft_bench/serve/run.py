"""Measures the executor under load: throughput, time to first token, inter-token latency, and their trade-offs.

A row is a load, measured in a window of a few seconds (`clients.py` defines when it opens and closes):

- `tokens_per_s`, `requests_per_s`: the output tokens taken and the requests answered in the window, divided by its
  length.
- `user_tokens_per_s`: tokens per second of a request after its first response, as the median of requests.
- `first_token_*_ms`: from a request's scheduled time to its first response at the client, without the wait for its
  guide, which is `compile_*_ms`. `queue_*_ms`, the wait for a slot, is a part of it.
- `token_*_ms`: the inter-token latency. It is the time between two responses of a request, divided by the number of
  tokens in the later one. Responses taken together count as one. Every token counts once.
- `longest_gap_*_ms`: the longest time between two responses of a request.
- `tokens_per_iteration`: the mean of requests.

Percentiles are over all requests answered, or all tokens taken, in the window. The summary has the comparisons
(`ratios.py`) and the loop's own time (`loop_time.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from rich.progress import track

from weft.errors import InputError
from weft_bench.report import Report
from weft_bench.rows import Rows
from weft_bench.serve.clients import Load, Window
from weft_bench.serve.ratios import compare, loop_times
from weft_bench.serve.setup import Loads, Setup
from weft_bench.serve.workload import Workload


def run(setup: Setup | str = "auto", loads: Loads | None = None) -> Report:
    """Return a row for each load. `setup` may be a device, with defaults for the other settings."""
    setup = setup if isinstance(setup, Setup) else Setup(device=setup)
    loads = loads if loads is not None else Loads()
    workload = Workload.heldout(setup.model, loads.prompts, loads.fixed_tokens, loads.prompt_tokens)
    with setup.serving(workload, loads.most_clients) as clients:
        rows = Rows("serve")
        for load in track(loads.all, description="serve", transient=True):
            with rows.trying(load=load):
                rows.append(row(load, clients.window(load, loads.seconds)))
        summary: dict[str, Any] = {
            "device": str(clients.executor.client.built.runtime.device),
            "model": clients.executor.client.built.path.name,
            "speculation": clients.executor.client.built.speculation.name,
            "num_draft_tokens": clients.executor.client.built.speculation.max_draft_tokens,
            "max_batch": clients.executor.client.built.config.max_batch,
            "policy": clients.executor.client.built.config.policy,
            "overlap": setup.overlap,
            "prefix_reuse": setup.reuse,
            "chunked": setup.chunked,
            "prompts": loads.prompts,
            "prompt_tokens": round(mean(map(len, workload.prompts)), 1),
            "answers": "end by themselves" if loads.fixed_tokens is None else f"{loads.fixed_tokens} tokens",
            "seconds": loads.seconds,
        }
    if loads.rounds:
        with rows.trying(compared="policies"):
            summary["compared"] = compare(setup, loads.seconds, loads.rounds)
        with rows.trying(compared="the loop's times"):
            summary["loop"] = loop_times(setup, loads.seconds)
    return rows.report(summary)


def row(load: Load, window: Window) -> dict[str, Any]:
    """Return a row of the report. Raises `InputError` if no request was answered in the window."""
    if not (window.requests and window.gaps and window.user_speed):
        raise InputError(
            f"no request was answered in {window.seconds:.1f} s under {load.name}; give more seconds, or less load"
        )
    return {
        "load": load.name,
        "guided_percent": load.guided_percent,
        "tokens_per_s": round(window.tokens_per_s),
        "requests_per_s": round(window.requests / window.seconds, 2),
        "user_tokens_per_s": round(median(window.user_speed), 1),
        **percentiles("first_token", window.first_token),
        **percentiles("token", window.gaps),
        **percentiles("longest_gap", window.longest_gap),
        "longest_gap_max_ms": round(max(window.longest_gap) * 1e3, 2),
        **percentiles("queue", window.queue),
        **percentiles("compile", window.compile),
        "tokens_per_iteration": round(mean(window.per_iteration), 2),
        "requests": window.requests,
    }


def percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Return the 50th and 99th percentiles in milliseconds."""
    return {f"{name}_p{p}_ms": round(percentile(seconds, p) * 1e3, 2) for p in (50, 99)}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that is at least as large as `percent` percent of the values."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def plot(report: Report, path: Path) -> None:
    """Plot throughput against the speed of a single user. Each share of guided requests has a line, with a point for
    each number of clients. Needs matplotlib."""
    from weft_bench.figures import lines

    drawn: dict[str, list[tuple[float, float]]] = {}
    for each in report.rows:
        if each["load"].endswith(("clients", "client")):
            label = f"{each['guided_percent']} % guided"
            drawn.setdefault(label, []).append((each["user_tokens_per_s"], each["tokens_per_s"]))
    if not drawn:
        raise InputError("the figure shows closed loops; give numbers of clients")
    found = report.summary
    drafts = (
        "no drafts"
        if found["speculation"] == "none"
        else f"{found['speculation']}, K={found['num_draft_tokens']}"
    )
    names = [each["load"] for each in report.rows if each["load"].endswith(("clients", "client"))]
    title = f"throughput against per-user speed, {names[0]} to {names[len(names) // len(drawn) - 1]}"
    panel = f"{found['model']}, {found['device']}, {drafts}"
    lines({panel: drawn}, path, title=title, x="tokens/s of one user", y="tokens/s of all")
