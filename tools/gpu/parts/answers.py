"""Common to all parts: questions whose answers go to the summary and to a report as they come, and that stop nothing.

The environment says `DEVICE` (`cpu` rehearses), `OUT`, the folder of the answers, and `LIMIT`, the seconds that this
process may take.
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
"""Characters of a line of the summary."""

_BEGAN = time.monotonic()
_LIMIT = float(os.environ.get("LIMIT", "inf"))


def left() -> float:
    """Seconds until this process is ended."""
    return _LIMIT - (time.monotonic() - _BEGAN)


def say(line: str) -> None:
    """Add a line to the summary."""
    line = line.replace("\n", " ")[:LONGEST]
    print(line, flush=True)
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "summary.txt").open("a") as file:
        file.write(f"{line}\n")


def shown(value: Any) -> str:
    """An answer as the summary has it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(shown, value))
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def rounded(value: Any) -> Any:
    """An answer as the report has it: floats with four digits."""
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


class Answers:
    """Questions of one part, in the report `first-NAME.json`."""

    def __init__(self, name: str) -> None:
        self.rows = Rows(f"first-{name}")

    def ask(self, question: str, answer: Callable[..., Any], *args: Any, needs: float = 0.0) -> None:
        """Say what `answer(*args)` gives, or what it raises; nothing of it if fewer than `needs` seconds are left."""
        self._ask(question, answer, args, needs, True)

    def tell(self, question: str, answer: Callable[..., Any], *args: Any, needs: float = 0.0) -> None:
        """As `ask`, for an answer that says itself what the summary is to have."""
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
    """The questions of a part, kept in `OUT/results` as they are answered."""
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
    """The GPU that torch sees, or "cpu"."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def write_and_say(report: Report, lines: Sequence[Mapping[str, Any]] | None = None) -> None:
    """Keep a report of `weft bench`, and say its rows, or these lines in their place, and its failures."""
    report.summary["device"] = device_name()
    report.write(OUT / "results")
    for line in report.rows if lines is None else lines:
        say(f"   {shown(line)}")
    if report.failures:
        say(f"   FAILED {json.dumps(report.failures)[:300]}")
