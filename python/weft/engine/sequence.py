"""A sequence: one answer of a request, from its submission until nothing in flight names it.

All transitions between stages are in the table; `Sequence.move` makes and checks them.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import abc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from weft.core import FinishReason, Hypothesis, Output
from weft.core.request import NOTHING, Request, StopWords
from weft.engine.device.tensors import Gathered
from weft.engine.features.processors import RequestProcessor
from weft.engine.kv.cache import KvSequence
from weft.errors import InputError, RequestError, brief
from weft.grammar.base import CompiledGuide, Matcher, Opening
from weft.grammar.starts import StartedGuide


class Stage(Enum):
    """Where a sequence is."""

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

TextEdit = tuple[int, tuple[int, ...], int]
"""An edit of the text by the matcher: after how many tokens of the answer, the tokens that it dropped, and how many it
appended."""


class RequestGuide:
    """A sequence's guide: a compilation, then a matcher, which stays with a sequence that is preempted.

    `compiling` ends in `compiled`. `edits` are the matcher's edits of the text; the last `num_empty_edits` of them
    dropped tokens and appended none.
    """

    def __init__(self, compiling: Future[CompiledGuide]) -> None:
        self.compiling = compiling
        self.compiled: CompiledGuide | None = None
        self.matcher: Matcher | None = None
        self.edits: list[TextEdit] = []
        self.num_empty_edits = 0
        self._opening = Opening()
        self._closes = False

    @classmethod
    def of(cls, compiled: CompiledGuide) -> RequestGuide:
        """A guide of a compilation that is done."""
        done: Future[CompiledGuide] = Future()
        done.set_result(compiled)
        guide = cls(done)
        guide.compiled = compiled
        return guide

    @property
    def room(self) -> int | None:
        """The number of tokens within which the answer must be complete; None if it may be cut."""
        return self._opening.room if self._closes else None

    def open_with(self, opening: Opening, closes: bool) -> None:
        """Set what the matcher is told of the sequence. `closes`: the answer must be complete within its length."""
        self._opening, self._closes = opening, closes

    def bound(self, room: int) -> None:
        """Limit the answer to `room` tokens, which may be fewer than the request wants."""
        self._opening = replace(self._opening, room=room)

    def begin(self) -> Matcher:
        """The matcher; the first call makes it. Raises `GuideError` if it can't be made."""
        if self.matcher is None:
            assert self.compiled is not None
            self.matcher = self._new_matcher(self.compiled)
        return self.matcher

    def _new_matcher(self, compiled: CompiledGuide) -> Matcher:
        if not self._closes:
            return compiled.matcher(self._opening)
        from weft.grammar.kinds.closing import closing_matcher  # few requests need it

        return closing_matcher(compiled, self._opening)

    def take_matcher(self) -> Matcher:
        """Hand the matcher over to the caller."""
        matcher = self.begin()
        self.matcher = None
        return matcher

    def close(self) -> None:
        """Release the guide and its matcher."""
        self.compiling = Future()
        self.compiled = self.matcher = None


@dataclass(frozen=True)
class BranchRow:
    """One row of the next iteration: `slot` continues the text of slot `parent` with `token`, which stands at
    `position`, in `pages`, under `matcher`."""

    slot: int
    parent: int
    token: int
    position: int
    pages: abc.Sequence[int]
    matcher: Matcher | None = None


@dataclass(frozen=True)
class Branching:
    """How beams branch before the next iteration: its rows, and pages to copy first, (from, to)."""

    rows: abc.Sequence[BranchRow]
    copies: abc.Sequence[tuple[int, int]] = ()


class Search(Protocol):
    """A beam search. It decides on the host, after each iteration, which beams continue."""

    num_offers: int
    """How many continuations each row must offer."""

    @property
    def num_rows(self) -> int:
        """Rows of the next iteration; 1 for the prompt."""

    def answer(self, row: int) -> abc.Sequence[int]:
        """The answer so far of one of the rows."""

    def take_branching(self) -> Branching | None:
        """Take the branching before the next iteration; None after the first call."""


Observer = Callable[["Sequence"], object]


@dataclass(eq=False, slots=True)
class Sequence:
    """One answer of `request`, or with `request.beam` the search for its best answers.

    `id` is the engine's number, `index` the place among the answers of the request. `seed` is this answer's own.
    `deadline` is a moment of `time.perf_counter` at which it ends with "timeout". `stop_words` watches its text.
    `output` is the answer so far; the engine's thread adds to it. The front has published `num_published` of its
    tokens.

    `on_progress` is called on the engine's thread after each iteration that added to the output and at the end,
    `on_end` after that; without `is_streaming`, `on_progress` is called at the end alone. Neither may raise.

    From its admission until no batch in flight names it, it holds `slots` and the pages of `kv`; `slot` is the first
    of the slots, and only a `search` has more. A sequence that is preempted gives them back and is admitted again.
    """

    request: Request
    seed: int = 0
    guide: RequestGuide | None = None
    stop_words: StopWords | None = None
    deadline: float | None = None
    index: int = 0
    id: int = field(default_factory=lambda: next(_ids))
    on_progress: Observer | None = None
    on_end: Observer | None = None
    is_streaming: bool = True

    stage: Stage = field(default=Stage.QUEUED, init=False)
    prompt: list[int] = field(init=False)
    output: Output = field(init=False)
    gathered: Gathered = field(init=False)
    processor: RequestProcessor | None = field(init=False)
    num_published: int = field(default=0, init=False)

    # Set by `admit`.
    slots: tuple[int, ...] = field(default=(), init=False)
    slot: int = field(default=-1, init=False)
    kv: KvSequence = field(init=False)
    num_context: int = field(default=0, init=False)  # tokens to read, `resumed_at` of them of the answer
    num_read: int = field(default=0, init=False)  # read or under way
    resumed_at: int = field(default=0, init=False)
    max_new_tokens: int = field(default=0, init=False)
    is_plain: bool = field(default=False, init=False)  # only end tokens, the grammar and its length end it
    is_guided: bool = field(default=False, init=False)
    starts_ahead: bool = field(default=False, init=False)
    in_flight: int = field(default=0, init=False)  # batches in flight that name it
    num_promised: int = field(default=0, init=False)  # tokens that these add at least
    next_cache_at: int = field(default=0, init=False)  # tokens of the answer at which another page is full
    must_reread: bool = field(default=False, init=False)  # its text was edited: it must read it again
    has_left: bool = field(default=False, init=False)  # its slots are to be given back
    search: Search | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        request, sampling = self.request, self.request.sampling
        self.prompt = list(request.prompt_ids)
        self.gathered = Gathered(request.gather)
        self.processor = RequestProcessor(request.processor) if request.processor is not None else None
        self.output = Output(prompt_token_ids=self.prompt)
        stats = self.output.stats
        stats.prompt_tokens, stats.submitted_at = len(self.prompt), time.perf_counter()
        if sampling.logprobs is not None:
            self.output.logprobs = []
        if self.guide is not None:
            self.guide.open_with(Opening(self.prompt, sampling.max_tokens), sampling.on_length == "close")
            if self.guide.compiled is None:
                self.stage = Stage.COMPILING
                self.guide.compiling.add_done_callback(stats.note_guide_ready)

    @property
    def width(self) -> int:
        """The number of beams; 1 without a search."""
        return 1 if self.request.beam is None else self.request.beam.width

    @property
    def hypotheses(self) -> abc.Sequence[Hypothesis] | None:
        """The best answers so far of a beam search, best first; None without a search."""
        return self.output.hypotheses if self.request.beam is not None else None

    @property
    def is_finished(self) -> bool:
        """Whether its answer has ended, with an error or without."""
        return self.stage is Stage.FINISHED

    @property
    def is_active(self) -> bool:
        """Whether it is admitted and has not ended."""
        return self.stage in (Stage.CONTEXT, Stage.GENERATION)

    @property
    def text(self) -> list[int]:
        """The prompt and the answer so far."""
        return self.prompt + self.output.token_ids

    @property
    def num_tokens(self) -> int:
        """How many tokens `text` has."""
        return len(self.prompt) + len(self.output.token_ids)

    @property
    def calls_host(self) -> bool:
        """Whether its logits processor is called on the host."""
        return self.processor is not None and self.processor.is_on_host

    @property
    def num_unread(self) -> int:
        """How many tokens are left to read, without those in flight."""
        return self.num_context - self.num_read

    def move(self, stage: Stage) -> None:
        """Change the stage, if the table allows it."""
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def admit(self, slots: tuple[int, ...], kv: KvSequence, max_new_tokens: int) -> None:
        """Take slots and pages for the text so far; the answer may have `max_new_tokens` tokens."""
        assert not self.in_flight
        self.move(Stage.CONTEXT)
        self.slots, self.slot, self.kv = slots, slots[0], kv
        self.num_context, self.num_read = self.num_tokens, kv.num_reused
        self.resumed_at, self.max_new_tokens = len(self.output.token_ids), max_new_tokens
        request = self.request
        self.is_plain = (
            self.stop_words is None
            and not (request.only_given and request.given)
            and not request.sampling.stop_token_ids
            and request.sampling.logprobs is None
            and request.gather is NOTHING
            and request.processor is None
        )
        self.is_guided = self.guide is not None
        self.starts_ahead = self.guide is not None and isinstance(self.guide.compiled, StartedGuide)
        self.num_promised = self.next_cache_at = 0
        self.must_reread = self.has_left = False
        self.search = None

    def finish(self, reason: FinishReason, error: RequestError | InputError | None = None) -> None:
        """End the sequence."""
        self.move(Stage.FINISHED)
        self.output.finish_reason = reason
        self.output.error = error
        self.output.stats.ended_at = time.perf_counter()
        self.output.stats.output_tokens = len(self.output.token_ids)
        if error is not None:
            _log.warning("request %d failed: %s: %s", self.id, type(error).__name__, brief(error))
        self.report()
        if self.on_end is not None:
            self.on_end(self)

    def fail(self, error: RequestError | InputError) -> None:
        """End the sequence with an error."""
        self.finish("error", error)

    def report(self) -> None:
        """Call `on_progress`."""
        if self.on_progress is not None:
            self.on_progress(self)

    def let_go(self) -> None:
        """Release the guide, the logits processor and the search. Called once the sequence has ended and no batch in
        flight names it; its output may live much longer."""
        if self.guide is not None:
            self.guide.close()
        self.processor = self.search = None


def sequences_of(
    request: Request, first: int | None = None, guide: Future[CompiledGuide] | None = None
) -> list[Sequence]:
    """The sequences of a prepared request, numbered from `first` on (None: by the engine's own count): one for each
    answer, or one for all beams. `guide` ends in its compiled guide."""
    numbers = [next(_ids) if first is None else first + index for index in range(request.num_sequences)]
    seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
    deadline = None if request.timeout_s is None else time.perf_counter() + request.timeout_s
    if request.processor is not None:
        # Its function is called with the number of the request, not with those of the sequences.
        processor = replace(request.processor, request_id=numbers[0], client_id=request.client_id)
        request = replace(request, processor=processor)
    return [
        Sequence(
            request,
            _wrapped(seed + index),
            RequestGuide(guide) if guide is not None else None,
            request.watch_stop_words(),
            deadline,
            index,
            number,
        )
        for index, number in enumerate(numbers)
    ]


def _wrapped(seed: int) -> int:
    """A seed as a signed 64-bit number."""
    return (seed + 2**63) % 2**64 - 2**63
