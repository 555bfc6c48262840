"""Who runs: requests get slots and pages, prompts their share of a step, and what others need more is taken back.

Decides only, and knows no device: the runner launches what a `Schedule` says, the output processor tells what became of
it. A `Sequence` says itself what it holds.
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable

from weft.config import ResolvedConfig, Speculation
from weft.engine.scheduling.capacity import Capacity
from weft.engine.scheduling.policy import share_tokens
from weft.engine.scheduling.schedule import Released, Schedule
from weft.engine.scheduling.shares import has_newcomer, next_to_run, who_yields
from weft.engine.scheduling.tuner import BatchTuner
from weft.engine.scheduling.waiting import Waiting
from weft.engine.sequence import Search, Sequence, Stage
from weft.engine.stats import StepRecord


class Scheduler:
    """Waiting and running requests of an engine; `running` in the order of their admission. `released` are slots that
    were given back, and that the runner has not heard of. `begin_search` begins the search of a request by beams."""

    def __init__(
        self,
        config: ResolvedConfig,
        speculation: Speculation,
        waiting: Waiting,
        capacity: Capacity,
        begin_search: Callable[[Sequence], Search] | None = None,
    ) -> None:
        self.waiting = waiting
        self.capacity = capacity
        self.running: list[Sequence] = []
        self.released: list[Released] = []
        self._config = config
        self._shares = config.shares_slots and config.policy != "static_batch"
        self._num_drafts_of = [0, *map(speculation.draft_tokens, range(1, config.max_batch + 1))]
        self.tuner = BatchTuner(config, capacity.kv.num_pages - 1, speculation.max_draft_tokens)
        self._begin_search = begin_search
        self._rereading: list[Sequence] = []
        self._grown: list[Sequence] = []
        self._is_short, self._waits = False, False  # in this step: no pages were left; a newcomer went first
        self._refused: tuple[Sequence | None, int] = None, 0  # in the last step, with so many pages to be had

    # -- requests come and go

    def add(self, sequence: Sequence) -> None:
        """A new request."""
        if sequence.guide is not None:
            sequence.guide.bound(self.capacity.max_new_tokens(sequence))
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The request ends, wherever it is. What it holds is free now, or when no batch in flight names it."""
        self.waiting.forget(sequence)
        self.tuner.note(len(sequence.prompt), len(sequence.output.token_ids))
        if sequence.is_active:
            self._leave(sequence)

    def retire(self, left: abc.Sequence[Sequence]) -> None:
        """No batch in flight names these any more, which ended or were preempted meanwhile: they give back what they
        hold."""
        for sequence in left:
            self._release(sequence)

    def reread(self, sequence: Sequence) -> None:
        """Let a sequence read its text again. It is preempted as soon as no batch in flight names it."""
        self._rereading.append(sequence)

    def prompt_tokens_read(self) -> dict[int, int]:
        """How far the prompts are that are being read, by request id."""
        return {r.id: r.num_read for r in self.running if r.stage is Stage.CONTEXT}

    def take_released(self) -> list[Released]:
        """What was `released` since the last call."""
        released, self.released = self.released, []
        return released

    # -- one step

    def schedule_decoding(self, record: StepRecord, in_flight: bool) -> Schedule | None:
        """Which requests decode next. None: what is in flight must be read first, for the pages that it may give
        back."""
        self._preempt_rereading()
        self._is_short, yielding = False, self._yielding()
        if yielding and in_flight:
            return None
        for sequence in yielding:
            self._preempt(sequence, record, yields=True)
        decoding = self._decoding()
        while decoding and not self._grow(decoding):
            if in_flight:
                return None
            self._is_short = True
            if not self._preempt_rereading():  # their pages are free then
                self._preempt(max(self.running, key=self.waiting.turns.place), record)
            decoding = self._decoding()
        return Schedule(decoding, _num_rows(decoding), self._num_drafts(decoding))

    def drop_ended(self, schedule: Schedule) -> None:
        """Take out of a schedule what has ended since."""
        decoding = [r for r in schedule.decoding if r.is_active and _wants_tokens(r)]
        schedule.decoding, schedule.num_rows = decoding, _num_rows(decoding)
        schedule.num_drafts = self._num_drafts(decoding)

    def schedule_prompts(self, schedule: Schedule, record: StepRecord) -> None:
        """Which requests come in, and which prompts are read, with the tokens that those that decode leave."""
        limits = record.limits = self.tuner.limits
        budget = limits.max_num_tokens - schedule.num_rows * (schedule.num_drafts + 1)
        schedule.admitted = self._admit(record, budget)
        # A newcomer's first token waits for nobody's iteration; nobody waits for newcomers twice in a row.
        self._waits = self._shares and not self._waits and has_newcomer(schedule.admitted, self.running)
        if self._waits:
            schedule.decoding, schedule.num_rows = [], 0
        else:
            grown, self._grown = self._grown, []
            schedule.grown = [sequence for sequence in grown if sequence.stage is Stage.GENERATION]
        if len(schedule.decoding) < len(self.running):
            schedule.reading = self._share(budget)
        schedule.released = self.take_released()
        if self.capacity.kv.moves:
            schedule.moves = self.capacity.kv.take_moves()

    def _decoding(self) -> list[Sequence]:
        return [r for r in self.running if r.stage is Stage.GENERATION and _wants_tokens(r)]

    def _grow(self, decoding: abc.Sequence[Sequence]) -> bool:
        """Pages for what each may write next. False: there are not as many."""
        if self.capacity.reserves_all:
            return True
        for sequence in decoding:
            has_more = self.capacity.grow(sequence)
            if has_more is None:
                return False
            if has_more:
                self._grown.append(sequence)
        return True

    def _num_drafts(self, decoding: abc.Sequence[Sequence]) -> int:
        """As many as batches of so many rows have, so that there are few kinds of iterations; none where all want
        none."""
        if all(sequence.request.max_drafts == 0 for sequence in decoding):
            return 0
        return self._num_drafts_of[_num_rows(decoding)]

    def _admit(self, record: StepRecord, budget: int) -> list[Sequence]:
        """Give slots and pages to those who wait, in their order, while there is something to read for them."""
        admitted, queue = list[Sequence](), self.waiting.queue
        self._refused = None, 0
        if self._is_short or not queue.requests or (self._config.policy == "static_batch" and self.running):
            return admitted
        unread = sum(sequence.num_unread for sequence in self.running)
        while queue.requests and (self.capacity.free_slots or self._shares):
            sequence = self._next()
            # All that run are searched with one number of beams; who wants another waits until they are done.
            fits = not self.running or self.running[0].width == sequence.width
            if not fits or not self._can_read(sequence, budget, unread):
                break
            is_full = self.running and self._num_slots_taken + sequence.width > self.tuner.limits.max_batch
            if is_full or not self.capacity.take(sequence, len(self.running)):
                self._refused = sequence, self.capacity.kv.num_available
                break
            if sequence.request.beam is not None:
                assert self._begin_search is not None
                sequence.search = self._begin_search(sequence)
            self.running.append(sequence)
            admitted.append(sequence)
            unread += sequence.num_unread
            if self.waiting.admit(sequence):
                record.new_active += 1
                record.new_active_queue_s += time.perf_counter() - sequence.output.stats.submitted_at
        return admitted

    def _next(self) -> Sequence:
        """Who is admitted next."""
        queue, turns, most = self.waiting.queue, self.waiting.turns, self.tuner.limits.max_batch
        return next_to_run(queue, turns, self.running, most) if self._shares else queue.first

    @property
    def _num_slots_taken(self) -> int:
        return self._config.max_batch - len(self.capacity.free_slots)

    def _can_read(self, sequence: Sequence, budget: int, unread: int) -> bool:
        """Whether one more prompt should be begun, where `budget` tokens may be read in this step, and of those that
        were begun `unread` are left."""
        config = self._config
        if config.policy == "static_batch":  # who does not come now waits until all the others are done
            return True
        if config.chunked and config.chunking == "equal_progress":
            return budget > 0
        # A prompt is read in parts where all are, or where no step is large enough for it.
        reads_parts = config.chunked or sequence.num_tokens > self.tuner.limits.max_num_tokens
        return unread < budget and (reads_parts or unread + sequence.num_tokens <= budget)

    def _share(self, budget: int) -> list[tuple[Sequence, int]]:
        """How many tokens of which prompts are read."""
        config = self._config
        reading = [r for r in self.running if r.stage is Stage.CONTEXT]
        shares = share_tokens(
            [r.num_unread for r in reading],
            budget,
            config.chunking,
            config.page_size,
            whole=None if config.chunked else self.tuner.limits.max_num_tokens,
        )
        for sequence, count in zip(reading, shares, strict=True):
            sequence.num_read += count
        return [(sequence, count) for sequence, count in zip(reading, shares, strict=True) if count]

    # -- taking back

    def _yielding(self) -> list[Sequence]:
        """Whose slots a client without any is to have."""
        queue, turns = self.waiting.queue, self.waiting.turns
        if not self._shares or not queue.requests or not self.running:
            return []
        newcomer, limits = self._next(), self.tuner.limits
        unread = sum(sequence.num_unread for sequence in self.running)
        if self.running[0].width > 1 or not self._can_read(newcomer, limits.max_num_tokens, unread):
            return []
        if self._num_slots_taken + newcomer.width > limits.max_batch:
            return who_yields(newcomer, queue, turns, self.running, limits.max_batch)
        refused, num_available = self._refused
        if refused is not newcomer or self.capacity.kv.num_available > num_available:  # it may fit now
            return []
        # There are slots, and no pages: those that run are as many as can, and one goes at a time.
        return who_yields(newcomer, queue, turns, self.running, self._num_slots_taken, most=1)

    def _preempt(self, sequence: Sequence, record: StepRecord, yields: bool = False) -> None:
        """Take slot and pages back from a request that nothing in flight names. Its text and its matcher stay."""
        assert not sequence.in_flight
        record.paused.append(sequence.id)
        self.capacity.cache(sequence)
        self._queue_again(sequence, yields)

    def _preempt_rereading(self) -> bool:
        """Queue the sequences that read their text again and that no batch in flight names; whether there were any.
        Their pages are not cached, because they don't hold the text."""
        if not self._rereading:
            return False
        live = [sequence for sequence in self._rereading if not sequence.has_left]
        self._rereading = [sequence for sequence in live if sequence.in_flight]
        again = [sequence for sequence in live if not sequence.in_flight]
        for sequence in again:
            self._queue_again(sequence)
        return bool(again)

    def _queue_again(self, sequence: Sequence, yields: bool = False) -> None:
        self._leave(sequence)
        sequence.move(Stage.QUEUED)
        self.waiting.add_again(sequence, yields)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.has_left = True
        if not sequence.in_flight:
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.capacity.release(sequence)
        self.released.append(Released(sequence, sequence.slots))
        if sequence.is_finished:
            sequence.let_go()


def _num_rows(decoding: abc.Sequence[Sequence]) -> int:
    return sum(1 if sequence.search is None else sequence.search.num_rows for sequence in decoding)


def _wants_tokens(sequence: Sequence) -> bool:
    """Whether it can decode now: its answer may have more tokens than what is in flight adds."""
    if sequence.must_reread or (sequence.search is not None and sequence.in_flight):
        return False
    return len(sequence.output.token_ids) + sequence.num_promised < sequence.max_new_tokens
