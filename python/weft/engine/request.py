"""A request's states. All transitions are in the table; whoever moves a request goes through `Request.move`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from weft.core import FinishReason, Output, SamplingParams
from weft.engine.device.sampling import TokenRules
from weft.engine.device.tensors import NOTHING, Gather, Gathered
from weft.errors import InputError, RequestError
from weft.grammar.base import Opening
from weft.grammar.kinds.closing import closing_matcher

if TYPE_CHECKING:
    from weft.engine.kv.cache import KvSequence, Retention
    from weft.engine.processors.base import LogitsProcessor
    from weft.engine.processors.captured import CapturedProcessor
    from weft.engine.step.prefill import PromptRow
    from weft.grammar.base import CompiledGuide, Matcher


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

NO_RULES = TokenRules()


class StopWords(Protocol):
    """Watches a text for the words that end it."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that the text now holds, if it does."""


@dataclass(eq=False, slots=True)
class Request:
    """One prompt on its way to an answer. `slot`, `row` and `kv` are held in CONTEXT and GENERATION; where
    work in flight names them, a little longer. The `matcher` stays with a request that is preempted.

    `priority`, 0 to 1, goes first where it is higher; among equals clients take turns: `turn` is the number of the
    `client`'s, which the request takes (`has_turn`) while it waits. `deadline` is a moment of `time.perf_counter` at
    which the request ends with "timeout". `max_drafts` bounds its drafts (None: as the engine has it; 0: none). `given`
    is the text that its caller expects as its answer: drafts, for an engine with `Speculation.given`.
    `end_ids` end its answer in the place of the engine's end tokens (None: those; with a guide, always those), and so
    do `stop_ids`.
    `retention` says how long its pages are worth keeping.
    `gather` is what it wants besides tokens, `gathered` keeps it. `processor` acts on its logits, `captured` where a
    graph does that; `failure` is what it raised.
    `on_progress` is called on the engine's thread after each iteration that added to `output`, and when the request is
    finished; `on_end` behind that. Neither may raise. One that is not `is_watched` hears of its end alone.

    `resumed_at` tokens of the answer were out when it was admitted last. Of the work in flight that names it, there are
    `in_flight` turns, which add `surely` tokens at least. The answer may have `room` tokens; with `stores_at` of them
    another page is full. It `is_rewritten` from when its matcher wrote the end of its text anew until it is read again;
    it took back tokens and put none `num_barren` times in a row. `splices` are the times it did so: behind how many
    tokens of the answer, which tokens it took back, and how many it put. A request `is_plain` if only end tokens, the
    grammar and `room` end it, and it wants nothing but tokens.
    """

    prompt: list[int]
    sampling: SamplingParams
    seed: int
    rules: TokenRules = field(default_factory=TokenRules)
    stop_words: StopWords | None = None
    guide: Future[CompiledGuide] | None = None
    priority: float = 0.5
    deadline: float | None = None
    max_drafts: int | None = None
    given: tuple[int, ...] = ()
    end_ids: frozenset[int] | None = None
    gather: Gather = NOTHING
    processor: LogitsProcessor | None = None
    on_progress: Callable[[Request], None] | None = None
    on_end: Callable[[Request], None] | None = None
    is_watched: bool = True
    client: int | None = None
    turn: int = 0
    has_turn: bool = False
    id: int = field(default_factory=lambda: next(_ids))
    stage: Stage = Stage.QUEUED
    slot: int = -1
    kv: KvSequence | None = None
    row: PromptRow | None = None
    compiled: CompiledGuide | None = None
    matcher: Matcher | None = None
    retention: Retention | None = None
    is_shaped: bool = False
    captured: CapturedProcessor | None = None
    failure: RequestError | None = None
    gathered: Gathered = field(default_factory=Gathered)
    resumed_at: int = 0
    in_flight: int = 0
    surely: int = 0
    room: int = 0
    is_rewritten: bool = False
    num_barren: int = 0
    splices: list[tuple[int, tuple[int, ...], int]] = field(default_factory=list)
    stores_at: int = 0
    is_plain: bool = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    output: Output = field(init=False)
    paused_at: float = 0.0

    def __post_init__(self) -> None:
        self.output = Output(prompt_token_ids=self.prompt)
        stats = self.output.stats
        stats.prompt_tokens, stats.submitted_at = len(self.prompt), time.perf_counter()
        if self.sampling.logprobs is not None:
            self.output.logprobs = []
        self.room = self.sampling.max_tokens
        self.stop_ids = frozenset(self.sampling.stop_token_ids)
        self.is_plain = (
            self.stop_words is None
            and not self.stop_ids
            and self.sampling.logprobs is None
            and self.gather is NOTHING
            and self.processor is None
        )
        if self.guide is not None:
            self.stage = Stage.COMPILING
            self.guide.add_done_callback(stats.note_guide_ready)

    @property
    def is_finished(self) -> bool:
        """Whether its answer has ended, with an error or without."""
        return self.stage is Stage.FINISHED

    @property
    def text(self) -> list[int]:
        """The prompt and the answer so far."""
        return self.prompt + self.output.token_ids

    def new_matcher(self) -> Matcher:
        """A matcher of its guide, at the start. Raises `GuideError` where it can't have one."""
        assert self.compiled is not None
        if self.sampling.on_length == "close":
            return closing_matcher(self.compiled, self.opening)
        return self.compiled.matcher(self.opening)

    def take_matcher(self) -> Matcher:
        """The one that was begun for it, or a new one; the request keeps none."""
        begun, self.matcher = self.matcher, None
        return begun if begun is not None else self.new_matcher()

    @property
    def opening(self) -> Opening:
        """What its matcher may know of it."""
        return Opening(self.prompt, self.room)

    @property
    def num_tokens(self) -> int:
        """How many tokens `text` has."""
        return len(self.prompt) + len(self.output.token_ids)

    @property
    def is_active(self) -> bool:
        """Whether it holds a slot."""
        return self.stage in (Stage.CONTEXT, Stage.GENERATION)

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
        self.report()
        if self.on_end is not None:
            self.on_end(self)

    def let_go(self) -> None:
        """Let go of what a request needs until it has ended and no work in flight names it, however long its answer is
        kept: the compiled guide, the matcher, the rules."""
        self.guide = self.compiled = self.matcher = self.processor = None
        self.rules, self.given = NO_RULES, ()

    def report(self) -> None:
        """Tell whoever watches that something happened."""
        if self.on_progress is not None:
            self.on_progress(self)

    def fail(self, error: RequestError | InputError) -> None:
        """End the request with an error."""
        self.finish("error", error)
