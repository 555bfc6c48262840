"""A request: what its caller asked, where it is, and what came of it.

All transitions between stages are in the table; whatever moves a request goes through `Request.move`. What a request
holds while it is served (slot, pages, prompt on the device) belongs to the scheduler and the runner.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from weft.config import Lookahead
from weft.core import FinishReason, Output, SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.request import NO_RULES, NOTHING, Gather, TokenRules
from weft.core.retention import Retention
from weft.engine.device.tensors import Gathered
from weft.engine.logits_processors import RequestProcessor
from weft.engine.request_guide import RequestGuide
from weft.engine.stop_rules import NO_STOPS, StopRules
from weft.errors import InputError, RequestError, brief
from weft.grammar.base import Opening


class Stage(Enum):
    """Where a request is."""

    COMPILING = "compiling"  # its guide is not ready
    QUEUED = "queued"  # waits for a slot and pages
    CONTEXT = "context"  # holds a slot; its prompt is being read
    GENERATION = "generation"  # holds a slot; decodes
    FINISHED = "finished"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.COMPILING: frozenset({Stage.QUEUED, Stage.FINISHED}),
    Stage.QUEUED: frozenset({Stage.CONTEXT, Stage.FINISHED}),
    Stage.CONTEXT: frozenset({Stage.GENERATION, Stage.QUEUED, Stage.FINISHED}),  # back when preempted
    Stage.GENERATION: frozenset({Stage.QUEUED, Stage.FINISHED}),
    Stage.FINISHED: frozenset(),
}

_ids = itertools.count(1)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Queueing:
    """How a request is scheduled. `priority`, 0 to 1, goes first where it is higher; among equals, clients take turns.
    `deadline` is a moment of `time.perf_counter` at which the request ends with "timeout". `retention` says how long
    its pages are worth keeping; only requests of the same `salt` find them."""

    priority: float = 0.5
    deadline: float | None = None
    client: int | None = None
    retention: Retention | None = None
    salt: str | None = None


@dataclass(frozen=True)
class DraftLimits:
    """A request's drafts: at most `max_drafts` (None: as the engine has it; 0: none). `given` is the text that its
    caller expects as its answer, for an engine with `Speculation.given`; `ahead` its own sizes of lookahead decoding,
    for one with `Speculation.lookahead` (None: the engine's)."""

    max_drafts: int | None = None
    given: tuple[int, ...] = ()
    ahead: Lookahead | None = None


@dataclass
class Watcher:
    """What hears of a request, on the engine's thread: `on_progress` after each iteration that added to its output and
    when it is finished, `on_end` after that. Neither may raise. Without `is_streaming`, of its end alone."""

    on_progress: Callable[[Request], object] | None = None
    on_end: Callable[[Request], object] | None = None
    is_streaming: bool = True


@dataclass(eq=False, slots=True)
class Request:
    """One prompt on its way to an answer.

    `rules` say in token ids what `sampling` says in words, and `stops` what ends the answer. With `beam` its best
    answers are searched, rather than one sampled. `gather` is what is wanted besides tokens; `gathered` keeps it.
    `processor` acts on the logits. `output` is the answer so far.
    """

    prompt: list[int]
    sampling: SamplingParams
    seed: int
    rules: TokenRules = NO_RULES
    stops: StopRules = NO_STOPS
    guide: RequestGuide | None = None
    beam: BeamParams | None = None
    queueing: Queueing = Queueing()
    drafts: DraftLimits = DraftLimits()
    gathered: Gathered = field(default_factory=Gathered)
    processor: RequestProcessor | None = None
    watcher: Watcher = field(default_factory=Watcher)
    id: int = field(default_factory=lambda: next(_ids))
    stage: Stage = Stage.QUEUED
    output: Output = field(init=False)

    def __post_init__(self) -> None:
        self.output = Output(prompt_token_ids=self.prompt)
        stats = self.output.stats
        stats.prompt_tokens, stats.submitted_at = len(self.prompt), time.perf_counter()
        if self.sampling.logprobs is not None:
            self.output.logprobs = []
        if self.guide is not None:
            self.guide.open_with(
                Opening(self.prompt, self.sampling.max_tokens), self.sampling.on_length == "close"
            )
            if self.guide.compiled is None:
                self.stage = Stage.COMPILING
                self.guide.compiling.add_done_callback(stats.note_guide_ready)

    @property
    def width(self) -> int:
        """How many texts are searched at a time; 1 without a search."""
        return 1 if self.beam is None else self.beam.width

    @property
    def gather(self) -> Gather:
        """What it wants besides tokens."""
        return self.gathered.wanted

    @property
    def is_plain(self) -> bool:
        """Whether only end tokens, the grammar and the length end it, and it wants nothing but tokens."""
        return (
            self.stops.words is None
            and not self.stops.expected
            and not self.sampling.stop_token_ids
            and self.sampling.logprobs is None
            and self.gather is NOTHING
            and self.processor is None
        )

    @property
    def forbidding(self) -> list[str]:
        """The parameters by which it forbids tokens, besides its guide."""
        sampling, bias = self.sampling, self.rules.bias
        forbids = {
            "bad_words": bool(sampling.bad_words),
            "no_repeat_ngram_size": bool(sampling.no_repeat_ngram_size),
            "logit_bias": bool(sampling.logit_bias),
            "embedding_bias": bias is not None and bool(bias.isneginf().any()),
        }
        return [name for name, is_set in forbids.items() if is_set]

    @property
    def is_finished(self) -> bool:
        """Whether its answer has ended, with an error or without."""
        return self.stage is Stage.FINISHED

    @property
    def is_active(self) -> bool:
        """Whether it holds a slot."""
        return self.stage in (Stage.CONTEXT, Stage.GENERATION)

    @property
    def text(self) -> list[int]:
        """The prompt and the answer so far."""
        return self.prompt + self.output.token_ids

    @property
    def num_tokens(self) -> int:
        """How many tokens `text` has."""
        return len(self.prompt) + len(self.output.token_ids)

    def move(self, stage: Stage) -> None:
        """Change the stage, by the table."""
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def finish(self, reason: FinishReason, error: RequestError | InputError | None = None) -> None:
        """End the request."""
        self.move(Stage.FINISHED)
        self.output.finish_reason = reason
        self.output.error = error
        self.output.stats.ended_at = time.perf_counter()
        self.output.stats.output_tokens = len(self.output.token_ids)
        if error is not None:
            _log.warning("request %d failed: %s: %s", self.id, type(error).__name__, brief(error))
        self.report()
        if self.watcher.on_end is not None:
            self.watcher.on_end(self)

    def fail(self, error: RequestError | InputError) -> None:
        """End the request with an error."""
        self.finish("error", error)

    def report(self) -> None:
        """Tell its watcher that something happened."""
        if self.watcher.on_progress is not None:
            self.watcher.on_progress(self)

    def let_go(self) -> None:
        """Let go of what a request needs until it has ended and no work in flight names it, however long its answer is
        kept: the guide, the processor, the rules."""
        if self.guide is not None:
            self.guide.close()
        self.processor, self.rules, self.drafts = None, NO_RULES, DraftLimits()
