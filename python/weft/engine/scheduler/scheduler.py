"""What the scheduler decided for one step."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.config import ResolvedConfig, Speculation, positions_ahead
from weft.core.beam_params import beam_pages_needed
from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.cache import KvManager
from weft.engine.kv.pool import Move
from weft.engine.scheduler.policy import has_newcomer, next_to_run, share_tokens, who_yields
from weft.engine.scheduler.tuner import BatchTuner
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import Search, Sequence, Stage
from weft.engine.stats import StepRecord


class Released(NamedTuple):
    """Slots that a sequence gave back: it may be admitted to others before the runner knows."""

    sequence: Sequence
    slots: tuple[int, ...]


@dataclass
class Schedule:
    """`decoding`, in `num_rows` rows, verify `num_drafts` drafts each, of which `grown` hold more pages than before.
    Before, `moves` of pages are made. `admitted` are new in their slots; of the prompts of `reading` so many tokens are
    read. `released` slots were given back since the schedule before."""

    decoding: list[Sequence] = field(default_factory=list)
    num_rows: int = 0
    num_drafts: int = 0
    grown: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    reading: list[tuple[Sequence, int]] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def everyone(self) -> list[Sequence]:
        """All that the step is for, each once."""
        reading = [sequence for sequence, _ in self.reading]
        return list(dict.fromkeys([*self.decoding, *self.admitted, *reading]))


# MERGED-DOC """Slots and pages: what there is, and which request holds what of it."""


class Capacity:
    """Gives sequences slots and pages of `kv`, and takes them back. With `reserves_all` a sequence gets all pages that
    it may ever need on admission.

    Drafting writes `max_drafts` positions ahead, and reads the last `margin` positions of a cached prefix again. `span`
    is what the layers attend to (None: the whole text).
    """

    def __init__(
        self,
        config: ResolvedConfig,
        kv: KvManager,
        *,
        max_drafts: int = 0,
        margin: int = 0,
        span: AttentionSpan | None = None,
    ) -> None:
        self.kv = kv
        self.free_slots = list(range(config.max_batch - 1, -1, -1))
        self.reserves_all = config.policy != "max_utilization"
        self._reuses = config.reuse
        self._max_seq_len = config.max_seq_len
        self._margin, self._ahead, self._span = margin, positions_ahead(max_drafts), span

    def max_new_tokens(self, sequence: Sequence) -> int:
        """How many tokens the request's answer may have."""
        return min(sequence.request.sampling.max_tokens, self._max_seq_len - len(sequence.prompt))

    def longest(self, sequence: Sequence) -> int:
        """How many tokens its text may come to."""
        return len(sequence.prompt) + self.max_new_tokens(sequence)

    def pages_needed(self, sequence: Sequence) -> int:
        """Pages that hold the longest text the request may come to, and what is written beyond. Beams have the full
        pages of the prompt in common."""
        if sequence.request.beam is not None:
            room = self.max_new_tokens(sequence)
            return beam_pages_needed(
                len(sequence.prompt), room, sequence.request.beam.step_widths, self.kv.page_size
            )
        return self.kv.pages_needed(self.longest(sequence) + self._ahead)

    def take(self, sequence: Sequence, num_running: int) -> bool:
        """Admit a sequence beside `num_running` others. False where slots or pages are too few; nothing has changed
        then."""
        if len(self.free_slots) < sequence.width:
            return False
        tokens, is_resumed = sequence.text, bool(sequence.output.token_ids)
        positions = self._positions(sequence)
        # Whoever is admitted should not be the next to be preempted.
        spare = 0 if self.reserves_all else num_running
        if spare and self.kv.pages_needed(positions) + spare > self.kv.num_available:
            return False
        kv = self.kv.begin(
            tokens,
            positions,
            margin=self._margin,
            reuse=not sequence.request.gather.context or is_resumed,
            retention=sequence.request.retention,
            num_prompt=len(sequence.prompt),
            salt=sequence.request.cache_salt,
        )
        if kv is None:
            return False
        slots = tuple(self.free_slots.pop() for _ in range(sequence.width))
        sequence.admit(slots, kv, self.max_new_tokens(sequence))
        sequence.output.stats.note_scheduled()
        sequence.output.stats.note_pages(*kv.counts)
        return True

    def _positions(self, sequence: Sequence) -> int:
        """Of how many positions a request gets the pages when it is admitted: a search never gets more later."""
        if sequence.width > 1:
            return self.pages_needed(sequence) * self.kv.page_size
        return (self.longest(sequence) if self.reserves_all else sequence.num_tokens) + self._ahead

    def grow(self, sequence: Sequence) -> bool | None:
        """Pages for what the next iteration may write: whether there are more than before; None where there are not
        enough."""
        if self.reserves_all or sequence.search is not None:
            return False
        before = len(sequence.kv.pages)
        if not self.kv.grow(sequence.kv, sequence.num_tokens + self._ahead):
            return None
        return len(sequence.kv.pages) > before

    def cache(self, sequence: Sequence) -> None:
        """Let others find the pages that are full by now, and take those back that no layer sees any more. The last
        token's keys and values are not there yet."""
        is_first, never = sequence.next_cache_at == 0, sequence.max_new_tokens + 1
        span = self._span if sequence.search is None else None
        position = sequence.num_tokens - 1
        hidden = span.hidden(position, self.kv.page_size) if span is not None else range(0)
        sequence.next_cache_at = never
        # Where pages leave, nothing of the answer is stored: they could not leave before what comes after them.
        if self._reuses and not sequence.kv.is_lost and (is_first or not hidden):
            self._store(sequence)
        if span is not None:
            self._give_back(sequence, span, hidden)

    def _store(self, sequence: Sequence) -> None:
        kv = sequence.kv
        before = len(sequence.prompt) - 1 - self._margin
        # Of a search the prompt alone: its pages are not written any more.
        valid = before + (len(sequence.output.token_ids) if sequence.search is None else 1)
        if sequence.num_unread:  # preempted while it is read
            valid = sequence.num_read - self._margin
        if valid >= (len(kv.chain) + 1) * self.kv.page_size:
            self.kv.store(kv, sequence.text, valid)
        sequence.next_cache_at = (len(kv.chain) + 1) * self.kv.page_size - before

    def _give_back(self, sequence: Sequence, span: AttentionSpan, hidden: range) -> None:
        kv, size = sequence.kv, self.kv.page_size
        if hidden and len(kv.chain) <= hidden.stop:
            self.kv.give_back(kv, hidden.start, hidden.stop)
        place = max(hidden.stop, len(kv.chain) - 1)
        due = span.hides(place, size) + 1 - len(sequence.prompt)
        sequence.next_cache_at = min(sequence.next_cache_at, max(due, 1))

    def release(self, sequence: Sequence) -> None:
        """Take slot and pages back. What they hold of the text can be found, up to where it ends."""
        self.free_slots.extend(reversed(sequence.slots))
        has_read = len(sequence.output.token_ids) > sequence.resumed_at and sequence.search is None
        if self._reuses and has_read and not sequence.is_spliced and sequence.output.error is None:
            self.kv.end(sequence.kv, sequence.text, max(sequence.num_tokens - 1 - self._margin, 0))
        else:
            self.kv.end(sequence.kv)


# MERGED-DOC """Who runs: requests get slots and pages, prompts their share of a step, and what others need more is taken back.
# MERGED-DOC
# MERGED-DOC Decides only, and knows no device: the runner launches what a `Schedule` says, the output processor tells what became of
# MERGED-DOC it. A `Sequence` says itself what it holds.
# MERGED-DOC """


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
        self._spliced: list[Sequence] = []
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

    def splice(self, sequence: Sequence) -> None:
        """The request's matcher wrote the end of its text anew: it is to be read again."""
        sequence.is_spliced = True
        self._spliced.append(sequence)

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
        self._read_spliced_again()
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
            if not self._read_spliced_again():  # those give pages back, which no longer hold their text
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

    def _read_spliced_again(self) -> bool:
        """Queue those whose text was written anew and that nothing in flight names; whether there were some."""
        if not self._spliced:
            return False
        live = [sequence for sequence in self._spliced if not sequence.has_left]
        self._spliced = [sequence for sequence in live if sequence.in_flight]
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
    if sequence.is_spliced or (sequence.search is not None and sequence.in_flight):
        return False
    return len(sequence.output.token_ids) + sequence.num_promised < sequence.max_new_tokens
