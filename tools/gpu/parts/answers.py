"""Common to all parts: questions with answers. Answers go to the summary and to a report at once, and a failure does
not stop the other questions.

Environment variables: `DEVICE` ("cpu" is a rehearsal), `OUT`, the folder of the results, and `LIMIT`, the seconds
that this process may take.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from weft_bench.report import Report
from weft_bench.rows import Rows, keeping

DEVICE = os.environ.get("DEVICE", "cuda")
ON_GPU = DEVICE == "cuda"
OUT = Path(os.environ.get("OUT", "out"))
LONGEST = 600
"""The maximum length of a line in the summary."""

_BEGAN = time.monotonic()
_LIMIT = float(os.environ.get("LIMIT", "inf"))


def left() -> float:
    """The seconds until this process is interrupted."""
    return _LIMIT - (time.monotonic() - _BEGAN)


def say(line: str) -> None:
    """Add a line to the summary."""
    line = line.replace("\n", " ")[:LONGEST]
    print(line, flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "summary.txt").open("a") as file:
        file.write(f"{line}\n")


def shown(value: Any) -> str:
    """Format an answer for the summary."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def rounded(value: Any) -> Any:
    """Prepare an answer for the report: floats are rounded to four digits."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Answers:
    """The questions of one part, with the report `first-NAME.json`."""

    def __init__(self, name: str) -> None:
        self.rows = Rows(f"first-{name}")

    def ask(self, question: str, answer: Callable[..., Any], *args: Any, needs: float = 0.0) -> None:
        """Call `answer(*args)`, and add its result or its error to the summary and the report. If fewer than `needs`
        seconds are left, it is not called."""
        self._ask(question, answer, args, needs, True)

    def tell(self, question: str, answer: Callable[..., Any], *args: Any, needs: float = 0.0) -> None:
        """Like `ask`, for an `answer` that writes to the summary itself."""
        self._ask(question, answer, args, needs, False)

    def _ask(self, question: str, answer: Callable[..., Any], args: Any, needs: float, said: bool) -> None:
        if left() < needs:
            say(f"{question}: LEFT OUT, {left():.0f} s left")
            return
        begin, before = time.perf_counter(), len(self.rows.failures)
        with self.rows.trying(question=question):
            given = answer(*args)
            seconds = time.perf_counter() - begin
            self.rows.append({"question": question, "answer": rounded(given), "seconds": round(seconds, 1)})
            if said:
                say(f"{question} [{seconds:.1f}s]: {shown(given)}")
        for failure in self.rows.failures[before:]:
            say(f"{question} [{time.perf_counter() - begin:.1f}s]: FAILED {failure['error'][:260]}")


@contextmanager
def answers(name: str) -> Iterator[Answers]:
    """Yield the questions of a part. Each answer is written to `OUT/results` at once."""
    made = Answers(name)
    try:
        with keeping(OUT / "results"):
            yield made
    except Exception:
        say(f"{name}: ENDED EARLY {traceback.format_exc(limit=-1)[-300:]}")
        raise
    finally:
        made.rows.report({"device": device_name()}).write(OUT / "results")


def device_name() -> str:
    """The name of the GPU that torch sees, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def write_and_say(report: Report, lines: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Write a report of `weft bench`. Add its failures to the summary, with its rows or with `lines` in place of
    them."""
    report.summary["device"] = device_name()
    report.write(OUT / "results")
    for line in report.rows if lines is None else lines:
        say(f"   {shown(line)}")
    if report.failures:
        say(f"   FAILED {json.dumps(report.failures)[:300]}")
