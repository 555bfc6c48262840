"""A sequence: one answer of a request, from its submission until no batch in flight refers to it.

`TRANSITIONS` lists the allowed changes of stage; `Sequence.move` checks against it.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import sys
import time
from collections import abc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from weft.core import FinishReason, Hypothesis, Output
from weft.core.request import Request, StopWords
from weft.engine.device.tensors import Gathered
from weft.engine.features.processors import RequestProcessor
from weft.engine.kv.cache import KvSequence
from weft.errors import InputError, RequestError, brief
from weft.grammar.base import CompiledGuide, Matcher, Opening
from weft.grammar.starts import StartedGuide


class Stage(Enum):
    """The stage of a sequence."""

    COMPILING = "compiling"  # waits for its guide or its matcher's start
    QUEUED = "queued"  # waits for a slot and pages
    CONTEXT = "context"  # holds a slot; its prompt is being read
    GENERATION = "generation"  # holds a slot; decodes
    FINISHED = "finished"


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.COMPILING: frozenset({Stage.QUEUED, Stage.FINISHED}),
    Stage.QUEUED: frozenset({Stage.CONTEXT, Stage.FINISHED}),
    Stage.CONTEXT: frozenset({Stage.GENERATION, Stage.QUEUED, Stage.FINISHED}),  # preemption requeues it
    Stage.GENERATION: frozenset({Stage.QUEUED, Stage.FINISHED}),
    Stage.FINISHED: frozenset(),
}

AT_FIRST_TOKEN = 0
"""`Sequence.next_cache_at` until its pages have been cached for the first time."""

NEVER = sys.maxsize
"""`Sequence.next_cache_at` if no more of its pages will be cached or released before its end."""

_ids = itertools.count(1)

_log = logging.getLogger(__name__)

TextEdit = tuple[int, tuple[int, ...], int]
"""An edit of the text by the matcher: (number of answer tokens before the edit, dropped tokens, number of appended
tokens)."""


class RequestGuide:
    """A sequence's guide: first a compilation, then a matcher. The matcher survives preemption.

    compiling: the future of `compiled`.
    edits: the matcher's edits of the text. The last `num_empty_edits` of them only dropped tokens.
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
        """Wrap a guide that is already compiled."""
        done: Future[CompiledGuide] = Future()
        done.set_result(compiled)
        guide = cls(done)
        guide.compiled = compiled
        return guide

    @property
    def room(self) -> int | None:
        """The number of tokens within which the answer must be complete; None if the length limit may cut it off."""
        return self._opening.room if self._closes else None

    def open_with(self, opening: Opening, closes: bool) -> None:
        """Set the opening with which a matcher will start. `closes`: the answer must be complete within its length
        limit."""
        self._opening, self._closes = opening, closes

    def bound(self, room: int) -> None:
        """Limit the answer to `room` tokens, because the engine may have room for fewer than the request wants."""
        self._opening = replace(self._opening, room=room)

    def begin(self) -> Matcher:
        """Return the matcher. The first call makes it, and raises `GuideError` if that fails."""
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
    """One beam in the next iteration: `slot` continues the text of slot `parent` with `token`.

    The token is at `position`. The beam's KV pages are `pages`, and its matcher is `matcher`.
    """

    slot: int
    parent: int
    token: int
    position: int
    pages: abc.Sequence[int]
    matcher: Matcher | None = None


@dataclass(frozen=True)
class Branching:
    """The branching of beams before the next iteration: the iteration's rows, and the pages to copy first, as
    (from, to)."""

    rows: abc.Sequence[BranchRow]
    copies: abc.Sequence[tuple[int, int]] = ()


class Search(Protocol):
    """A beam search. After each iteration it decides on the host which beams continue."""

    num_offers: int
    """The number of likeliest continuations that the device returns for each row."""

    @property
    def num_rows(self) -> int:
        """The number of rows in the next iteration; 1 until the first token."""

    def answer(self, beam: int) -> abc.Sequence[int]:
        """The answer tokens so far of beam number `beam`, which is row `beam` of the search."""

    def take_branching(self) -> Branching | None:
        """Return the branching for the next iteration and remove it, so that a second call returns None."""


class Rest(NamedTuple):
    """The state that the device has for a sequence that leaves its slot. Models with recurrent states keep it.

    position: the number of tokens of the text that the state covers.
    num_owed: the number of drafts that it covers and that the slot's memory does not. The device must apply them
        (docs/kv-cache.md). -1: all that were accepted in the slot's last iteration.
    next_token: the token after them, if the text does not have it.
    """

    position: int
    num_owed: int
    next_token: int | None = None


SequenceCallback = Callable[["Sequence"], object]


@dataclass(eq=False, slots=True)
class Sequence:
    """One answer of `request`, or one beam search if the request has `beam`.

    id: the sequence's number, which is unique in the engine.
    index: the position among the answers of the request.
    seed: the seed of this answer.
    deadline: the time of `time.perf_counter` at which the sequence ends with "timeout".
    stop_words: finds stop words in the text.
    output: the answer so far. Only the engine's thread adds to it.
    num_published: the number of the output's tokens that the front has published.

    `on_progress` is called on the engine's thread after the results of an iteration are committed, and at the end.
    Without `is_streaming` it is called only at the end. `on_end` is called last. Neither may raise.

    From admission until no batch in flight refers to it, the sequence holds `slots` and the pages of `kv`. `slot` is
    the first of the slots; only a beam search has more than one. A preempted sequence releases both, and is admitted
    again later.
    """

    request: Request
    seed: int = 0
    guide: RequestGuide | None = None
    stop_words: StopWords | None = None
    deadline: float | None = None
    index: int = 0
    id: int = field(default_factory=lambda: next(_ids))
    on_progress: SequenceCallback | None = None
    on_end: SequenceCallback | None = None
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
    num_context: int = field(default=0, init=False)  # to read; the last `resumed_at` are the answer's
    num_read: int = field(default=0, init=False)  # tokens of those that are cached, read or in flight
    resumed_at: int = field(default=0, init=False)  # length of the answer at the last admission
    max_new_tokens: int = field(default=0, init=False)
    is_plain: bool = field(default=False, init=False)  # its tokens are committed natively
    num_watched: int = field(default=0, init=False)  # tokens of the answer that `stop_words` has seen
    is_guided: bool = field(default=False, init=False)
    starts_ahead: bool = field(
        default=False, init=False
    )  # worker threads start its matcher (grammar/starts.py)
    num_in_flight: int = field(default=0, init=False)  # batches in flight that refer to it
    num_promised: int = field(default=0, init=False)  # least number of tokens that these batches add
    next_cache_at: int = field(default=AT_FIRST_TOKEN, init=False)  # answer length at which `cache` is due
    must_reread: bool = field(default=False, init=False)  # an edit changed the text: read it again
    has_left: bool = field(default=False, init=False)  # it no longer runs, but still holds its slots
    rest: Rest | None = field(
        default=None, init=False
    )  # if it left while in flight, and its state can be kept
    search: Search | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        request, sampling = self.request, self.request.sampling
        self.prompt = list(request.prompt_ids)
        self.gathered = Gathered(request.gather)
        self.processor = RequestProcessor(request.processor) if request.processor is not None else None
        self.output = Output(self.prompt, prompt=request.prompt_text, index=self.index)
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
        """The best answers of a beam search so far, best first; None without a search."""
        return self.output.hypotheses if self.request.beam is not None else None

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended, with or without an error."""
        return self.stage is Stage.FINISHED

    @property
    def is_active(self) -> bool:
        """Whether the sequence is admitted and has not ended."""
        return self.stage in (Stage.CONTEXT, Stage.GENERATION)

    @property
    def text(self) -> list[int]:
        """The prompt and the answer so far."""
        return self.prompt + self.output.token_ids

    @property
    def num_tokens(self) -> int:
        """The number of tokens in `text`."""
        return len(self.prompt) + len(self.output.token_ids)

    @property
    def num_unread(self) -> int:
        """The number of tokens to read that no launch has read yet."""
        return self.num_context - self.num_read

    def move(self, stage: Stage) -> None:
        """Change the stage. Asserts that `TRANSITIONS` allows it."""
        assert stage in TRANSITIONS[self.stage], f"{self.stage} -> {stage}"
        self.stage = stage

    def admit(self, slots: tuple[int, ...], kv: KvSequence, max_new_tokens: int) -> None:
        """Start to read the text so far, in the given slots and pages. The answer may have `max_new_tokens`
        tokens."""
        assert not self.num_in_flight
        self.move(Stage.CONTEXT)
        self.slots, self.slot, self.kv = slots, slots[0], kv
        self.num_context, self.num_read = self.num_tokens, kv.num_reused
        self.resumed_at, self.max_new_tokens = len(self.output.token_ids), max_new_tokens
        self.is_guided = self.guide is not None
        self.starts_ahead = self.guide is not None and isinstance(self.guide.compiled, StartedGuide)
        self.num_promised, self.next_cache_at = 0, AT_FIRST_TOKEN
        self.must_reread = self.has_left = False
        self.search = self.rest = None

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

    def close(self) -> None:
        """Release the guide, the logits processor and the search, because a front may keep the sequence's output for
        long. Call it once the sequence has ended and no batch in flight refers to it."""
        if self.guide is not None:
            self.guide.close()
        self.processor = self.search = None


def sequences_of(
    request: Request, first: int | None = None, guide: Future[CompiledGuide] | None = None
) -> list[Sequence]:
    """Make the sequences of a prepared request: one for each answer, or one for a beam search.

    Their ids are numbered from `first`. If it is None, they continue the count of the process. `guide` is the future of
    the compiled guide.
    """
    numbers = [next(_ids) if first is None else first + index for index in range(request.num_sequences)]
    seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
    deadline = None if request.timeout_s is None else time.perf_counter() + request.timeout_s
    if request.processor is not None:
        # The processor's function gets one request id, the same for all answers of the request.
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
    """Wrap a seed to a signed 64-bit number."""
    return (seed + 2**63) % 2**64 - 2**63
