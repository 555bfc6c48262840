"""What a guide costs an iteration: the same engine over the same model, with guided requests and without.

Both sides commit the same number of tokens an iteration: without drafts one; with EAGLE3 drafts a number that is
forced (`simulate_acceptance`), so that the text does not decide. They take turns, so that drift cancels. The guide is
the schema of an object with many texts to fill in, which no answer comes to the end of.

`grammar_us` is what the matchers' work took, wherever it ran; `exposed_us` is by how much a guided iteration is
longer, applying the masks included; what is exposed less than the grammar took was hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from weft.bench.engines import Bench, Shape
from weft.bench.report import Report
from weft.engine.lifecycle import Request
from weft.engine.loop import Engine
from weft.grammar.guide import Guide
from weft.trace import recording

BATCHES = (1, 2, 4, 8, 16, 32, 64)
RANDOM_BATCHES = (1, 8)
RANDOM_SHAPE = Shape(layers=8, hidden=768)
NUM_DRAFTS = 3
SIMULATED = 3.0
MAX_SEQ_LEN = 512
BLOCK = 8
FIELDS = [f"field_{i}" for i in range(64)]
GUIDE = Guide.json_schema(
    {"type": "object", "properties": {name: {"type": "string"} for name in FIELDS}, "required": FIELDS}
)
OPERATIONS = ("fetch", "extend", "commit")


class Side:
    """An engine that decodes `batch` requests without end, guided or not."""

    def __init__(self, bench: Bench, batch: int, num_drafts: int, guide: Guide | None) -> None:
        self.engine = bench.engine(batch, MAX_SEQ_LEN, num_drafts, SIMULATED if num_drafts else None)
        self.seconds: list[float] = []
        self.grammar_seconds: list[float] = []
        self.tokens = 0
        self._bench, self._batch, self._guide = bench, batch, guide
        if guide is not None:
            bench.compiler.submit(guide).result()
        self._requests: list[Request] = []
        self._submitted = 0

    def fill(self) -> None:
        """Put a new request in the place of each that ended, and take it past its first iterations. Raises the error
        of one that failed.
        """
        for request in self._requests:
            if request.output.error is not None:
                raise request.output.error
        self._requests = [request for request in self._requests if not request.is_finished]
        missing = self._batch - len(self._requests)
        for _ in range(missing):
            self._submitted += 1
            request = self._bench.request(self._submitted, MAX_SEQ_LEN, self._guide)
            self._requests.append(request)
            self.engine.submit(request)
        for _ in range(3 if missing else 0):
            self.engine.step()

    def block(self, iterations: int) -> None:
        """Time some iterations, those over the whole batch."""
        self.fill()
        for _ in range(iterations):
            grammar, tokens = grammar_seconds(self.engine), self._num_tokens()
            begin = time.perf_counter()
            self.engine.step()
            seconds = time.perf_counter() - begin
            if any(request.is_finished for request in self._requests):
                self.fill()
                continue
            self.seconds.append(seconds)
            self.grammar_seconds.append(grammar_seconds(self.engine) - grammar)
            self.tokens += self._num_tokens() - tokens

    @property
    def tokens_per_iteration(self) -> float:
        """Of each request."""
        return self.tokens / (len(self.seconds) * self._batch)

    def trace(self, path: Path) -> None:
        """Write one iteration as a Chrome trace."""
        self.fill()
        path.parent.mkdir(parents=True, exist_ok=True)
        with recording(self._bench.runtime, path):
            self.engine.step()

    def _num_tokens(self) -> int:
        return sum(len(request.output.token_ids) for request in self._requests)


def grammar_seconds(engine: Engine) -> float:
    """What the grammar's operations have taken so far."""
    return sum(engine.lane.state.counters(operation).seconds for operation in OPERATIONS)


def run(
    device: str = "auto",
    model: Path | None = None,
    shape: Shape | None = None,
    batches: Sequence[int] = BATCHES,
    iterations: int = 64,
    out: Path | None = None,
    with_random: bool = True,
) -> Report:
    """A row for each model, batch size, and speculation. Times are medians of `iterations` or more.

    The model is that of a directory or, with a `shape`, random; after it comes a random one of 110 million parameters,
    unless `with_random` is False. With `out`, `overhead-trace.json` there shows a guided iteration at the batch size
    of the worst ratio.
    """
    first = Bench.random(device, shape) if shape else Bench.load(device, model)
    cases = [(first, batch, drafts) for drafts in (NUM_DRAFTS, 0) for batch in batches]
    second = Bench.random(device, RANDOM_SHAPE) if with_random and shape is None else None
    if second is not None:
        cases += [(second, b, drafts) for drafts in (NUM_DRAFTS, 0) for b in RANDOM_BATCHES]
    rows = [
        measure(bench, batch, num_drafts, iterations)
        for bench, batch, num_drafts in track(cases, description="overhead", transient=True)
    ]
    summary: dict[str, Any] = {
        "device": str(first.runtime.device),
        "drafter": f"EAGLE3, {NUM_DRAFTS} drafts",
        "guide": f"JSON schema: an object of {len(FIELDS)} texts",
        "tokens_per_iteration": f"simulated with drafts: {SIMULATED} forced",
        "worst_ratio": min(row["ratio"] for row in rows),
    }
    if out is not None:
        worst = min(rows[: len(batches)], key=lambda row: row["ratio"])
        side = Side(first, worst["batch"], NUM_DRAFTS, GUIDE)
        side.trace(out / "overhead-trace.json")
        side.engine.close()
        summary["trace"] = f"overhead-trace.json: a guided iteration at batch {worst['batch']}"
    for bench in (first, second):
        if bench is not None:
            bench.close()
    return Report("overhead", rows, summary)


def measure(bench: Bench, batch: int, num_drafts: int, iterations: int) -> dict[str, Any]:
    """One row: guided and unguided iterations in turns, in the order of a palindrome."""
    guided, plain = Side(bench, batch, num_drafts, GUIDE), Side(bench, batch, num_drafts, None)
    turn = [guided, plain, plain, guided]
    while min(len(side.seconds) for side in turn) < iterations:
        for side in turn:
            side.block(BLOCK)
    for side in (guided, plain):
        side.engine.close()
    return row(bench.name, batch, num_drafts, guided, plain)


def row(model: str, batch: int, num_drafts: int, guided: Side, plain: Side) -> dict[str, Any]:
    """One line of the report."""
    guided_us, plain_us = median(guided.seconds) * 1e6, median(plain.seconds) * 1e6
    grammar_us = median(guided.grammar_seconds) * 1e6
    return {
        "model": model,
        "drafts": num_drafts,
        "batch": batch,
        "unguided_us": round(plain_us),
        "guided_us": round(guided_us),
        "ratio": round(plain_us / guided_us, 3),
        "exposed_us": round(guided_us - plain_us),
        "grammar_us": round(grammar_us),
        "hidden_percent": hidden_percent(guided_us - plain_us, grammar_us),
        "tokens_guided": round(guided.tokens_per_iteration, 2),
        "tokens_unguided": round(plain.tokens_per_iteration, 2),
    }


def hidden_percent(exposed_us: float, grammar_us: float) -> int:
    """The share of the grammar's work that made no iteration longer, 0 to 100; none where there was no work."""
    if grammar_us <= 0:
        return 0
    return round(100 * min(1.0, max(0.0, 1 - exposed_us / grammar_us)))
