"""What each hostile request of `tests/support/grammar/strangers.py` costs a neighbour: its longest wait, and the
memory that is left.

    .venv/bin/python benchmarks/strangers.py [--out FOLDER] [NAME ...]

One executor of weft-tiny for guides of strangers on the CPU, the requests one after another, each as a client of its
own, beside a neighbour that streams. `NAME` picks those whose names hold it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.engine.neighbour import Neighbour, ends, resident_mib
from support.grammar.strangers import Stranger, everything
from weft.errors import WeftError
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    Request,
)
from weft_bench.report import Report

SETTLE_S = 0.3
ALONE_S = 20.0


def made(stranger: Stranger) -> Request | str:
    """The request, or why there is none."""
    try:
        return stranger.make()
    except WeftError as error:
        return f"{type(error).__name__}: {error}"


def ended(executor: Executor, request: Request, client: int) -> str:
    """How a request ended."""
    try:
        request.client_id = client
        number = executor.enqueue_request(request)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    while True:
        for response in executor.await_responses(number):
            if ends(response):
                return response.error_msg if response.has_error() else response.result.finish_reasons[0].name


def measure(names: list[str]) -> Report:
    """A row for each request, and what they cost together."""
    config = ExecutorConfig(
        guided_decoding_config=GuidedDecodingConfig(untrusted=True), max_batch_size=4, max_seq_len=1024
    )
    rows = []
    with Executor(None, config, device="cpu") as executor:
        warm = Request([0], 2, guided_decoding_params=GuidedDecodingParams(GuideType.REGEX, "ab"))
        executor.await_responses(executor.enqueue_request(warm))
        neighbour = Neighbour(executor)
        time.sleep(1.0)
        neighbour.longest_gap()
        time.sleep(ALONE_S)
        alone = neighbour.longest_gap()
        first = resident_mib()
        for client, stranger in enumerate(everything()):
            if names and not any(name in stranger.name for name in names):
                continue
            request, before = made(stranger), resident_mib()
            # The reading of the memory collects garbage: a gap that is none of the request's, and ends after it.
            time.sleep(SETTLE_S)
            neighbour.longest_gap()
            start = time.perf_counter()
            how = ended(executor, request, client) if isinstance(request, Request) else request
            took = time.perf_counter() - start
            time.sleep(SETTLE_S)
            gap = neighbour.longest_gap()
            row = {
                "request": stranger.name,
                "seconds": round(took, 3),
                "longest_gap_over_alone": round(gap / alone, 2),
                "mib": round(resident_mib() - before, 1),
                "ended": how[:120],
            }
            rows.append(row)
            print(
                f"{row['seconds']:7.2f} s  gap x {row['longest_gap_over_alone']:5.2f}  {row['mib']:+7.1f} MiB  "
                f"{row['request'][:58]:58s} {row['ended'][:60]!r}",
                flush=True,
            )
        neighbour.end()
        summary = {
            "alone_longest_gap_ms": round(alone * 1e3, 1),
            "longest_gap_over_alone": max(row["longest_gap_over_alone"] for row in rows),
            "mib": round(resident_mib() - first, 1),
            "neighbours_different_answers": len(neighbour.answers),
        }
    return Report("strangers", rows, summary)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    report = measure(arguments.names)
    print(report.summary)
    if arguments.out is not None:
        report.write(arguments.out)
