"""The scheduler decides which sequences hold slots and pages, which decode in the next step, and which prompts are
read.

The runner launches the work of a `Schedule`, and the output processor commits the results. Only the scheduler assigns
slots and pages. A `Sequence` moves between these places:

    waiting (COMPILING, QUEUED)  --_admit-->  running (CONTEXT)  --runner-->  running (GENERATION)
          ^                                       |                               |
          +------------ preempt, _queue_again ---+-------------------------------+
                                                  |
                                           remove (FINISHED)

- `Waiting` holds the sequences without a slot. `running` lists those with one, in the order of admission.
- `schedule_decoding` picks the sequences that decode, and allocates the pages that they need next. If pages run out, it
  preempts the running sequence that is last in the queue's order.
- `schedule_prompts` then admits waiting sequences, and shares the rest of the step's token budget among prompts.
- A preempted sequence releases slots and pages, but keeps its text, matcher and place in the queue. When it is
  admitted again, it reads its text again; most of it is usually still cached.
- A client without a slot may take slots from clients that hold more than their share (`policy.py`).

One rule keeps work in flight safe: the slots and pages of a sequence do not change hands while a batch in flight
refers to it (`Sequence.num_in_flight`). So a sequence can be preempted only if no batch refers to it. If a preemption
is due, `schedule_decoding` returns None, and the engine reads its batches first. A sequence that ends leaves
`running` at once, but `retire` releases its slots and pages only after its last batch is read. Only pages to which no
layer attends any more are released earlier (`Capacity.cache`)."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.config import ResolvedConfig, Speculation, positions_ahead
from weft.core.beam_params import beam_pages_needed
from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.cache import KvManager
from weft.engine.kv.pool import Move
from weft.engine.scheduler.draft_lengths import DraftLengths
from weft.engine.scheduler.pace import Pace
from weft.engine.scheduler.policy import choose_yielding, next_to_run, share_tokens
from weft.engine.scheduler.tuner import BatchTuner
from weft.engine.scheduler.waiting import Waiting
from weft.engine.sequence import AT_FIRST_TOKEN, NEVER, Rest, Search, Sequence, Stage
from weft.engine.stats import StepRecord


class Save(NamedTuple):
    """The state of `sequence` after its first `position` tokens must be kept in snapshot `row`. A part of its prompt in
    the same step reads the token before that position."""

    sequence: Sequence
    position: int
    row: int


class Settle(NamedTuple):
    """The state of `slot`, which its sequence has released, must be kept in snapshot `row`, after the next `num_owed`
    accepted drafts (-1: all of them)."""

    slot: int
    row: int
    num_owed: int


class Load(NamedTuple):
    """The state in snapshot `row` must be copied to `slot`."""

    row: int
    slot: int


class Released(NamedTuple):
    """The slots that a sequence released. When the runner handles this, another sequence may already have them."""

    sequence: Sequence
    slots: tuple[int, ...]


@dataclass
class Schedule:
    """The work of one step.

    decoding: the sequences that decode. They take `num_rows` rows.
    num_drafts: the number of drafts that each row verifies, and each row of a prompt that ends makes.
    grown: the decoding sequences with new pages, whose page tables must be written.
    admitted: the sequences whose new slots must be filled.
    reading: the prompts to read, each with its number of tokens.
    released: the slots released since the last schedule.
    moves: the page copies to launch first.
    settles: the states to keep of slots that were released since the last schedule, each in a row of its own. They come
        before all other work, because other sequences may already have the slots.
    saves: the states to keep while prompts are read.

    The device makes settles first, then `loads`, then saves with the iterations. So a row can be in all three.
    """

    decoding: list[Sequence] = field(default_factory=list)
    num_rows: int = 0
    num_drafts: int = 0
    grown: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    reading: list[tuple[Sequence, int]] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    settles: list[Settle] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)

    @property
    def loads(self) -> list[Load]:
        """The states that admitted sequences begin with. A search reads its prompt in its first slot."""
        return [
            Load(sequence.kv.snapshot, sequence.slot)
            for sequence in self.admitted
            if sequence.kv.snapshot is not None
        ]

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences of the step, each once."""
        reading = [sequence for sequence, _ in self.reading]
        return list(dict.fromkeys([*self.decoding, *self.admitted, *reading]))

    @property
    def ending(self) -> list[Sequence]:
        """The sequences whose prompts end in this step, so that they get their first token."""
        return [sequence for sequence, _ in self.reading if not sequence.num_unread]


class Capacity:
    """Allocates slots and pages of `kv` to sequences, and releases them.

    reserves_all: whether a sequence gets all pages that it may ever need on admission.
    max_drafts: the largest number of drafts. Their KV is written beyond the end of the text.
    margin: the number of positions at the end of a cached prefix that the drafter must read again.
    span: the positions that the layers attend to (None: the whole text).
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
        # An iteration may be launched before the last one is read; `_positions_ahead` covers both.
        self._margin, self._positions_ahead, self._span = margin, positions_ahead(max_drafts), span

    def max_new_tokens(self, sequence: Sequence) -> int:
        """The maximum length of a sequence's answer."""
        return min(sequence.request.sampling.max_tokens, self._max_seq_len - len(sequence.prompt))

    def pages_needed(self, sequence: Sequence) -> int:
        """The number of pages for a sequence's longest text and the positions written ahead. The beams of a search
        share the full pages of the prompt."""
        if sequence.request.beam is not None:
            return beam_pages_needed(
                len(sequence.prompt),
                self.max_new_tokens(sequence),
                sequence.request.beam.step_widths,
                self.kv.page_size,
            )
        return self.kv.pages_needed(self._max_tokens(sequence) + self._positions_ahead)

    def take(self, sequence: Sequence, num_running: int) -> bool:
        """Admit a sequence while `num_running` others run. Returns False and changes nothing if there are too few slots
        or pages."""
        if len(self.free_slots) < sequence.width:
            return False
        positions = self._positions(sequence)
        # Leave a page for each running sequence to grow, or the new one may be preempted right away.
        spare = 0 if self.reserves_all else num_running
        if spare and self.kv.pages_needed(positions) + spare > self.kv.num_available:
            return False
        is_resumed = bool(sequence.output.token_ids)
        kv = self.kv.begin(
            sequence.text,
            positions,
            margin=self._margin,
            # The prompt's outputs are gathered while it is read, so a cached prefix would have none.
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

    def _max_tokens(self, sequence: Sequence) -> int:
        return len(sequence.prompt) + self.max_new_tokens(sequence)

    def _positions(self, sequence: Sequence) -> int:
        """The number of positions to allocate on admission. A beam search gets all its pages then."""
        if sequence.width > 1:
            return self.pages_needed(sequence) * self.kv.page_size
        num_tokens = self._max_tokens(sequence) if self.reserves_all else sequence.num_tokens
        return num_tokens + self._positions_ahead

    @property
    def grows(self) -> bool:
        """Whether sequences get pages while they decode. Windowed pages are never reserved."""
        return not self.reserves_all or self.kv.windowed is not None

    def grow(self, sequence: Sequence) -> bool | None:
        """Allocate the pages that the next iteration may write. Returns whether pages were added, or None if too few
        are available."""
        if not self.grows or sequence.search is not None:
            return False
        num_before = sequence.kv.num_pages
        if not self.kv.grow(sequence.kv, sequence.num_tokens + self._positions_ahead):
            return None
        return sequence.kv.num_pages > num_before

    def num_positions_left(self, sequence: Sequence) -> int:
        """The number of positions that the sequence's pages have room for before it must `grow`."""
        kv = sequence.kv
        num_pages = len(kv.pages)
        if kv.windowed is not None:
            num_pages = min(num_pages, len(kv.windowed.pages))
        return num_pages * self.kv.page_size - sequence.num_tokens - self._positions_ahead

    def cache(self, sequence: Sequence) -> None:
        """Cache the sequence's full pages, and release those that no layer attends to any more. Sets `next_cache_at`,
        the answer length at which this is due again."""
        is_first = sequence.next_cache_at == AT_FIRST_TOKEN
        span = self._span if sequence.search is None else None
        position = sequence.num_tokens - 1  # the last token's; its keys and values are not written yet
        hidden = span.hidden(position, self.kv.page_size) if span is not None else range(0)
        sequence.next_cache_at = NEVER
        # Once pages are hidden, don't cache the answer's pages, because `release_pages` can't release pages before
        # cached ones.
        if self._reuses and not sequence.kv.is_lost and (is_first or not hidden):
            self._store(sequence)
        if span is not None:
            self._release_hidden(sequence, span, hidden)
        if self.kv.windowed is not None and not sequence.num_unread:
            self.kv.release_hidden(sequence.kv, position)
            due = len(sequence.output.token_ids) + self.kv.page_size
            sequence.next_cache_at = min(sequence.next_cache_at, due)

    def _store(self, sequence: Sequence) -> None:
        kv = sequence.kv
        num_prompt = len(sequence.prompt) - 1 - self._margin
        # KV is valid before the last token, less the margin. In a beam search, cache only the prompt's pages, because
        # later pages belong to single beams and change.
        num_valid = num_prompt + (len(sequence.output.token_ids) if sequence.search is None else 1)
        if sequence.num_unread:  # preempted before its prompt was read to the end
            num_valid = sequence.num_read - self._margin
        if num_valid >= (len(kv.chain) + 1) * self.kv.page_size:
            self.kv.store(kv, sequence.text, num_valid)
        sequence.next_cache_at = (len(kv.chain) + 1) * self.kv.page_size - num_prompt

    def _release_hidden(self, sequence: Sequence, span: AttentionSpan, hidden: range) -> None:
        kv, size = sequence.kv, self.kv.page_size
        if hidden and len(kv.chain) <= hidden.stop:
            self.kv.release_pages(kv, hidden.start, hidden.stop)
        next_page = max(hidden.stop, len(kv.chain) - 1)
        due = span.hides(next_page, size) + 1 - len(sequence.prompt)
        sequence.next_cache_at = min(sequence.next_cache_at, max(due, 1))

    def release(self, sequence: Sequence, is_preempted: bool = False) -> Settle | None:
        """Release slots and pages. If the pages surely hold the KV of the text, it is cached first, without the last
        token and the margin. Returns the state to keep, for a model with states."""
        self.free_slots.extend(reversed(sequence.slots))
        is_valid = not sequence.must_reread and sequence.output.error is None and sequence.search is None
        if is_valid and self.kv.num_snapshots:
            rest = _rest_of(sequence) if is_preempted else sequence.rest
            if rest is not None and self._can_begin_at(rest, sequence):
                return self.end_at(rest, sequence)
        if self._reuses and is_valid and len(sequence.output.token_ids) > sequence.resumed_at:
            self.kv.end(sequence.kv, sequence.text, max(sequence.num_tokens - 1 - self._margin, 0))
        else:
            self.kv.end(sequence.kv)
        return None

    def _can_begin_at(self, rest: Rest, sequence: Sequence) -> bool:
        """Whether a text can begin with this state. A drafter's last `margin` entries depend on later tokens. If that
        is one token, they are valid for a text that has the same next token."""
        is_next_known = rest.position < sequence.num_tokens or rest.next_token is not None
        return self._margin == 0 or (self._margin == 1 and is_next_known)

    def end_at(self, rest: Rest, sequence: Sequence) -> Settle | None:
        """Release pages, and cache the KV up to the position of the state. Returns the state to keep; None if it is
        kept already, or can't be."""
        row = None
        if rest.position > sequence.kv.num_reused:
            row = self.kv.take_snapshot(sequence.kv, rest.position, rest.next_token)
        self.kv.end(sequence.kv, sequence.text, rest.position)
        return None if row is None else Settle(sequence.slot, row, rest.num_owed)


def _rest_of(sequence: Sequence) -> Rest:
    """The state of a sequence that is preempted. Nothing is in flight, so the host has read all tokens of the device.
    The state is that of the tokens that were read, or of all but the last, which the next iteration would read."""
    position = sequence.num_read if sequence.num_unread else sequence.num_tokens - 1
    return Rest(position, -1)


class Scheduler:
    """Schedules the `waiting` and the `running` sequences of an engine.

    `released` lists slots that were released and are not in a schedule yet. `begin_search` starts the beam search of
    a sequence.
    """

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
        self.pace = Pace(config.max_stall)
        self.tuner = BatchTuner(config, capacity.kv.num_pages - 1, speculation.max_draft_tokens)
        self._config = config
        self._shares = config.shares_slots and config.policy != "static_batch"
        self.draft_lengths = DraftLengths(speculation, config.max_batch)
        self._begin_search = begin_search
        self._rereading: list[Sequence] = []
        self._grown: list[Sequence] = []
        self._settles: dict[int, Settle] = {}  # by row: a row may be evicted and taken again
        self._lacks_pages = False  # a sequence was preempted for pages in this step
        # The sequence that did not fit in the last step, and how many pages were available then.
        self._refused: tuple[Sequence | None, int] = None, 0

    # -- adding and removing sequences

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence."""
        if sequence.guide is not None:
            sequence.guide.bound(self.capacity.max_new_tokens(sequence))
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ends, in any stage. Its slots and pages are released now, or by `retire` if a batch in
        flight refers to it."""
        self.waiting.remove(sequence)
        self.tuner.note(len(sequence.prompt), len(sequence.output.token_ids))
        if sequence.is_active:
            self._leave(sequence)

    def retire(self, left: abc.Sequence[Sequence]) -> None:
        """Release slots and pages of sequences that left `running` while they were in flight. `left` are those that are
        no longer in flight."""
        for sequence in left:
            self._release(sequence)
        self.waiting.num_changes += bool(left)

    def cache(self, sequence: Sequence) -> None:
        """Cache the full pages of a sequence that decodes (`Capacity.cache`). A waiting sequence may fit then."""
        self.capacity.cache(sequence)
        self.waiting.num_changes += bool(len(self.waiting.queue))

    def reread(self, sequence: Sequence) -> None:
        """Make a sequence read its text again, after an edit. It is preempted once no batch in flight refers to it."""
        self._rereading.append(sequence)
        self.waiting.num_changes += 1

    def note_iteration(
        self, num_rows: int, num_drafts: int, seconds: float, accepted: abc.Sequence[int]
    ) -> None:
        """Add a measured iteration without prompts (`DraftLengths.note`). If another number of drafts is due, the last
        schedule must not be repeated."""
        if self.draft_lengths.note(num_rows, num_drafts, seconds, accepted):
            self.waiting.num_changes += 1

    def prompt_tokens_read(self) -> dict[int, int]:
        """The number of tokens of each unfinished prompt that are cached, prefilled or in flight, by sequence id."""
        return {r.id: r.num_read for r in self.running if r.stage is Stage.CONTEXT}

    def take_released(self) -> list[Released]:
        """Return the slots released since the last call, and clear `released`."""
        released, self.released = self.released, []
        return released

    # -- one step

    def schedule_decoding(self, record: StepRecord, has_in_flight: bool) -> Schedule | None:
        """Choose the sequences that decode next. Returns None if a preemption is due while batches are in flight: the
        caller must read them first and call again."""
        self._preempt_rereading()
        self._lacks_pages, yielding = False, self._yielding()
        if yielding and has_in_flight:
            return None
        for sequence in yielding:
            self.preempt(sequence, record, yields=True)
        decoding = self._decoding()
        while decoding and not self._grow(decoding):
            if has_in_flight:
                return None
            self._lacks_pages = True
            if not self._preempt_rereading():  # these release their pages anyway, so preempt them first
                self.preempt(max(self.running, key=self.waiting.turns.place), record)
            decoding = self._decoding()
        return Schedule(decoding, _num_rows(decoding), self._num_drafts(decoding))

    def all_want_tokens(self, decoding: abc.Sequence[Sequence]) -> bool:
        """Whether all of these sequences can decode now."""
        return all(map(_wants_tokens, decoding))

    def drop_ended(self, schedule: Schedule) -> None:
        """Remove from a schedule the sequences that have ended since it was made. Call it with nothing in flight: their
        slots and pages are free then. A sequence that must reread its edited text no longer decodes."""
        decoding = [r for r in schedule.decoding if r.is_active and _wants_tokens(r)]
        schedule.decoding, schedule.num_rows = decoding, _num_rows(decoding)
        schedule.grown = [sequence for sequence in schedule.grown if sequence.is_active]
        schedule.admitted = [sequence for sequence in schedule.admitted if sequence.is_active]
        schedule.reading = [(sequence, count) for sequence, count in schedule.reading if sequence.is_active]
        schedule.saves = [save for save in schedule.saves if save.sequence.is_active]
        schedule.num_drafts = self._num_drafts([*decoding, *schedule.ending], bool(schedule.reading))

    def schedule_prompts(self, schedule: Schedule, record: StepRecord) -> None:
        """Complete a schedule: admit sequences, and choose the prompts to read. Decoding takes its tokens from the
        step's budget. The prompts share the rest, as far as the pace allows (`pace.py`)."""
        limits = record.limits = self.tuner.limits
        num_drafts = self._num_drafts(schedule.decoding, reads_prompts=True)
        budget = limits.max_num_tokens - schedule.num_rows * (num_drafts + 1)
        if self._config.chunked:
            budget = self.pace.max_tokens(len(schedule.decoding), num_drafts, budget)
        schedule.admitted = self._admit(record, budget)
        grown, self._grown = self._grown, []
        schedule.grown = [sequence for sequence in grown if sequence.stage is Stage.GENERATION]
        if len(schedule.decoding) < len(self.running):
            schedule.reading = self._share(budget)
            if self.capacity.kv.num_snapshots:
                schedule.saves = [save for sequence, _ in schedule.reading for save in self._saves(sequence)]
            schedule.num_drafts = self._num_drafts(
                [*schedule.decoding, *schedule.ending], bool(schedule.reading)
            )
        schedule.released = self.take_released()
        if self.capacity.kv.moves:
            schedule.moves = self.capacity.kv.take_moves()
        if self._settles:
            schedule.settles = [*self._settles.values()]
            self._settles.clear()

    def num_repeats(self, schedule: Schedule) -> int:
        """The number of steps that may do the work of a schedule again, as long as `Waiting.num_changes` stays the
        same. Call it before the results of the schedule are read."""
        decoding = schedule.decoding
        if len(decoding) != len(self.running) or not decoding or schedule.num_rows != len(decoding):
            return 0
        if schedule.admitted or schedule.grown or schedule.released or schedule.moves or self._lacks_pages:
            return 0
        # A waiting sequence surely stays there only if slots or pages lack: the pace and clients' turns change.
        is_full = not self.capacity.free_slots or self._refused[0] is not None
        if len(self.waiting.queue) and (self._shares or not is_full):
            return 0
        if not self.capacity.grows:
            return NEVER
        num_left = min(map(self.capacity.num_positions_left, decoding))
        return max(num_left // (schedule.num_drafts + 1) - 1, 0)

    def _decoding(self) -> list[Sequence]:
        return [r for r in self.running if r.stage is Stage.GENERATION and _wants_tokens(r)]

    def _grow(self, decoding: abc.Sequence[Sequence]) -> bool:
        """Allocate the pages that each sequence may write next. Returns False if too few are available."""
        if not self.capacity.grows:
            return True
        for sequence in decoding:
            has_more = self.capacity.grow(sequence)
            if has_more is None:
                return False
            if has_more:
                self._grown.append(sequence)
        return True

    def _num_drafts(self, decoding: abc.Sequence[Sequence], reads_prompts: bool = False) -> int:
        """The number of drafts for each row of sequences that decode; 0 if no sequence wants any. It depends only on
        the number of rows, and on whether the iteration reads prompts, so that few graphs are needed."""
        if all(sequence.request.max_drafts == 0 for sequence in decoding):
            return 0
        return self.draft_lengths.choose(_num_rows(decoding), reads_prompts)

    def _admit(self, record: StepRecord, budget: int) -> list[Sequence]:
        """Give slots and pages to waiting sequences, in order, while `budget` has tokens left for their prompts."""
        admitted, queue = list[Sequence](), self.waiting.queue
        self._refused = None, 0
        if self._lacks_pages or not len(queue) or (self._config.policy == "static_batch" and self.running):
            return admitted
        num_unread = sum(sequence.num_unread for sequence in self.running)
        while len(queue) and (self.capacity.free_slots or self._shares):
            sequence = self._next()
            # All running sequences have the same beam width. A sequence of another width waits until they are done.
            fits = not self.running or self.running[0].width == sequence.width
            if not fits or not self._can_read(sequence, budget, num_unread):
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
            num_unread += sequence.num_unread
            if self.waiting.admit(sequence):
                record.new_active += 1
                record.new_active_queue_s += time.perf_counter() - sequence.output.stats.submitted_at
        return admitted

    def _next(self) -> Sequence:
        """The sequence to admit next."""
        queue = self.waiting.queue
        if not self._shares:
            return queue.first
        return next_to_run(queue, self.waiting.turns, self.running, self.tuner.limits.max_batch)

    @property
    def _num_slots_taken(self) -> int:
        return self._config.max_batch - len(self.capacity.free_slots)

    def _can_read(self, sequence: Sequence, budget: int, num_unread: int) -> bool:
        """Whether another prompt can start in a step of `budget` tokens. Earlier prompts have `num_unread` tokens left
        to read."""
        config = self._config
        if config.policy == "static_batch":  # otherwise it would wait until the whole batch has ended
            return True
        if config.chunked and config.chunking == "equal_progress":
            return budget > 0
        # A prompt is read in chunks if chunking is on, or if no step is large enough for it.
        reads_parts = config.chunked or sequence.num_tokens > self.tuner.limits.max_num_tokens
        return num_unread < budget and (reads_parts or num_unread + sequence.num_tokens <= budget)

    def _share(self, budget: int) -> list[tuple[Sequence, int]]:
        """Share the step's tokens among the prompts, and count them as read. Returns (sequence, number of tokens)."""
        config = self._config
        reading = [r for r in self.running if r.stage is Stage.CONTEXT]
        shares = share_tokens(
            [r.num_unread for r in reading],
            budget,
            config.chunking,
            config.page_size,
            whole=None if config.chunked else self.tuner.limits.max_num_tokens,
        )
        # A prompt's last token is decoded in the step that reads the token before it.
        shares = [n + (0 < n == r.num_unread - 1) for r, n in zip(reading, shares, strict=True)]
        for sequence, count in zip(reading, shares, strict=True):
            sequence.num_read += count
        return [(sequence, count) for sequence, count in zip(reading, shares, strict=True) if count]

    def _saves(self, sequence: Sequence) -> Iterator[Save]:
        """Take rows for the states that should be kept of a prompt, as far as it is read in this step."""
        kv = sequence.kv
        while kv.save_at and kv.save_at[0] <= sequence.num_read:
            position = kv.save_at.pop(0)
            row = self.capacity.kv.take_snapshot(kv, position)
            if row is not None:
                yield Save(sequence, position, row)

    # -- preemption

    def _yielding(self) -> list[Sequence]:
        """The running sequences that must yield their slots to a client without any."""
        queue, turns = self.waiting.queue, self.waiting.turns
        if not self._shares or not len(queue) or not self.running:
            return []
        newcomer, limits = self._next(), self.tuner.limits
        num_unread = sum(sequence.num_unread for sequence in self.running)
        if self.running[0].width > 1 or not self._can_read(newcomer, limits.max_num_tokens, num_unread):
            return []
        if self._num_slots_taken + newcomer.width > limits.max_batch:
            return choose_yielding(newcomer, queue, turns, self.running, limits.max_batch)
        refused, num_available = self._refused
        if refused is not newcomer or self.capacity.kv.num_available > num_available:  # it may fit now
            return []
        # Slots are free but pages are not, so pages limit the batch. Compute shares of the slots in use, and let one
        # sequence yield at a time.
        return choose_yielding(newcomer, queue, turns, self.running, self._num_slots_taken, max_yielding=1)

    def preempt(self, sequence: Sequence, record: StepRecord, yields: bool = False) -> None:
        """Take slots and pages from a sequence and queue it again. It must not be in flight. It keeps its text and
        matcher."""
        assert not sequence.num_in_flight
        record.paused.append(sequence.id)
        self.capacity.cache(sequence)
        self._queue_again(sequence, yields)

    def _preempt_rereading(self) -> bool:
        """Queue again the sequences that must reread their edited text and are no longer in flight. Returns whether
        there were any. Their pages are not cached, because they don't hold the edited text."""
        if not self._rereading:
            return False
        live = [sequence for sequence in self._rereading if not sequence.has_left]
        self._rereading = [sequence for sequence in live if sequence.num_in_flight]
        again = [sequence for sequence in live if not sequence.num_in_flight]
        for sequence in again:
            self._queue_again(sequence)
        return bool(again)

    def _queue_again(self, sequence: Sequence, yields: bool = False) -> None:
        self._leave(sequence, is_preempted=True)
        sequence.move(Stage.QUEUED)
        self.waiting.add_again(sequence, yields)

    def _leave(self, sequence: Sequence, is_preempted: bool = False) -> None:
        self.running.remove(sequence)
        sequence.has_left = True
        if not sequence.num_in_flight:
            self._release(sequence, is_preempted)

    def _release(self, sequence: Sequence, is_preempted: bool = False) -> None:
        settle = self.capacity.release(sequence, is_preempted)
        if settle is not None:
            self._settles[settle.row] = settle
        self.released.append(Released(sequence, sequence.slots))
        if sequence.is_finished:
            sequence.close()


def _num_rows(decoding: abc.Sequence[Sequence]) -> int:
    return sum(1 if sequence.search is None else sequence.search.num_rows for sequence in decoding)


def _wants_tokens(sequence: Sequence) -> bool:
    """Whether the sequence can decode now: its answer is below its limit, counting the tokens that batches in flight
    surely add. A beam search waits for its batch in flight. A sequence that must reread its text does not decode."""
    if sequence.must_reread or (sequence.search is not None and sequence.num_in_flight):
        return False
    return len(sequence.output.token_ids) + sequence.num_promised < sequence.max_new_tokens
