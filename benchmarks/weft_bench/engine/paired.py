"""A side of a comparison: an engine that decodes a whole batch endlessly, timed in blocks of iterations.

Sides take turns in palindromic order (`take_turns`). The result is the median over turns of the ratio within a turn
(`ratio`), so that drift and growing texts affect all sides equally. Two sides may share an engine. Each then cancels
its requests before the other begins.
"""

from __future__ import annotations

import time
from collections import abc
from dataclasses import dataclass
from statistics import median

from weft.config import Graphs
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence, Stage
from weft.grammar.guide import Guide
from weft_bench.engine.models import Bench

SIMULATED = 3.0
"""The tokens per iteration with simulated acceptance."""

MAX_SEQ_LEN = 512
PROMPT_TOKENS = 8
BLOCK = {"cpu": 1, "cuda": 8}
"""The number of iterations that a side runs at a time. If iterations overlap, the first and last of a block also
contain work of another side."""

FIELDS = [f"field_{i}" for i in range(64)]
GUIDE = Guide.json_schema(
    {"type": "object", "properties": {name: {"type": "string"} for name in FIELDS}, "required": FIELDS},
    max_whitespace=8,  # as in the published figures
)
OPERATIONS = ("fetch", "extend", "commit")


@dataclass(frozen=True)
class Setting:
    """The settings that the compared sides share: model, batch size, drafts per iteration, and lengths of texts. With
    drafts, each iteration commits `simulated` tokens; None: those that the target accepts."""

    bench: Bench
    batch: int
    num_drafts: int
    max_seq_len: int = MAX_SEQ_LEN
    prompt_tokens: int = PROMPT_TOKENS
    simulated: float | None = SIMULATED

    def engine(self, graphs: Graphs) -> Engine:
        """Build an engine of this size."""
        simulated = self.simulated if self.num_drafts else None
        return self.bench.engine(self.batch, self.max_seq_len, self.num_drafts, simulated, graphs)


class Side:
    """An engine that endlessly decodes a batch of requests, guided or not. `engine` may belong to another side with
    the same setting, which then closes it."""

    def __init__(
        self, setting: Setting, guide: Guide | None, *, graphs: Graphs = "one", engine: Engine | None = None
    ) -> None:
        self.engine = engine or setting.engine(graphs)
        self.seconds: list[float] = []
        self.grammar_seconds: list[float] = []
        self.contexts: list[float] = []
        self.tokens: list[int] = []
        self._setting, self._batch, self._guide = setting, setting.batch, guide
        if guide is not None:
            setting.bench.compiler.submit(guide).result()
        self._requests: list[Sequence] = []
        self._submitted = 0

    def fill(self) -> None:
        """Replace each request that has ended by a new one, and step until the new ones are past their first
        iterations. Raises the error of a request that failed."""
        self._raise_errors()
        self._requests = [request for request in self._requests if not request.is_finished]
        missing = self._batch - len(self._requests)
        for _ in range(missing):
            self._submitted += 1
            of = self._setting
            request = of.bench.request(self._submitted, of.max_seq_len, self._guide, of.prompt_tokens)
            self._requests.append(request)
            self.engine.submit(request)
        while any(r.stage is not Stage.GENERATION and not r.is_finished for r in self._requests):
            self.engine.step()
        for _ in range(2 if missing else 0):
            self.engine.step()

    @property
    def is_whole(self) -> bool:
        """Whether the whole batch is decoding and no request has ended."""
        return len(self._requests) == self._batch and not any(r.is_finished for r in self._requests)

    def leave(self) -> None:
        """Cancel all requests, so that another side may use the engine."""
        for request in self._requests:
            self.engine.cancel(request)
        self._requests.clear()
        while self.engine.has_work:
            self.engine.step()

    def block(self, iterations: int) -> list[float]:
        """Time up to `iterations` over the whole batch, but stop after an iteration in which a request ends. Returns
        their seconds."""
        self.fill()
        num_before = len(self.seconds)
        for _ in range(iterations):
            grammar, tokens, context = grammar_seconds(self.engine), self._num_tokens(), self._context()
            begin = time.perf_counter()
            self.engine.step()
            seconds = time.perf_counter() - begin
            if not self.is_whole:
                self._raise_errors()
                break
            self.seconds.append(seconds)
            self.grammar_seconds.append(grammar_seconds(self.engine) - grammar)
            self.contexts.append(context)
            self.tokens.append(self._num_tokens() - tokens)
        return self.seconds[num_before:]

    def forget(self, num_kept: int) -> None:
        """Drop the times of all iterations except the first `num_kept`."""
        for figures in (self.seconds, self.grammar_seconds, self.contexts, self.tokens):
            del figures[num_kept:]

    @property
    def us(self) -> float:
        """The median microseconds per iteration."""
        return median(self.seconds) * 1e6

    @property
    def tokens_per_iteration(self) -> float:
        """The tokens of a request per iteration."""
        return sum(self.tokens) / (len(self.seconds) * self._batch)

    @property
    def context(self) -> float:
        """The mean number of tokens of a request before an iteration, prompt and answer together."""
        return sum(self.contexts) / len(self.contexts)

    def _raise_errors(self) -> None:
        for request in self._requests:
            if request.output.error is not None:
                raise request.output.error

    def _num_tokens(self) -> int:
        return sum(len(request.output.token_ids) for request in self._requests)

    def _context(self) -> float:
        return self._setting.prompt_tokens + self._num_tokens() / self._batch


def take_turns(sides: abc.Sequence[Side], iterations: int) -> list[list[float]]:
    """Time at least `iterations` of each side, in blocks, from the first side to the last and back. Returns the
    median seconds of each side in each turn."""
    block = BLOCK[sides[0].engine.runtime.device.type]
    turns: list[list[float]] = []
    while 2 * block * len(turns) < iterations:
        found: dict[Side, list[float]] = {side: [] for side in sides}
        num_before = {side: len(side.seconds) for side in sides}
        for side in (*sides, *reversed(sides)):
            found[side] += side.block(block)
            if not side.is_whole:
                # If a request ends, all sides start again, so that their texts have the same length. This turn is
                # dropped.
                for each in sides:
                    each.leave()
                    each.forget(num_before[each])
                break
        else:
            turns.append([median(seconds) for seconds in found.values()])
    return turns


def ratio(turns: abc.Sequence[abc.Sequence[float]], one: int, other: int) -> float:
    """Return the median over turns of the time of side `one` divided by that of side `other`."""
    return median(seconds[one] / seconds[other] for seconds in turns)


def grammar_seconds(engine: Engine) -> float:
    """Return the total seconds of the grammar's operations so far."""
    return sum(engine.grammar.state.counters(operation).seconds for operation in OPERATIONS)
