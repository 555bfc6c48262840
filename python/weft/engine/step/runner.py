"""The model runner: launches what a schedule says. Nothing here waits, but where something failed or was never
captured."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from weft.config import ResolvedConfig
from weft.engine.device.results import OfferBuffers, ResultRings, note_logprobs, note_offers
from weft.engine.device.state import DecodeParts
from weft.engine.processors.host import HostRows
from weft.engine.recording import Recorder
from weft.engine.scheduling.schedule import Released, Schedule
from weft.engine.sequence import Branching, Sequence
from weft.engine.step.attachments import Attachments
from weft.engine.step.branching import BranchInputs, branch
from weft.engine.step.draft_masking import DraftGuidance
from weft.engine.step.graphs import StepGraphs
from weft.engine.step.in_flight import InFlightBatch
from weft.engine.step.moving import Moving, move_pages
from weft.engine.step.opening import write_pages
from weft.engine.step.prefill import Prefill
from weft.engine.step.prompt_reader import PromptReader, StepTap
from weft.engine.step.reading import ReadingBuffers
from weft.engine.step.step import NO_PROCESSORS, Guides, Plan, Processors
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream


def bucket(rows: int, max_batch: int) -> int:
    """The smallest batch size of a graph that holds `rows`: a power of two, or `max_batch`."""
    return min(1 << (rows - 1).bit_length(), max_batch)


@dataclass(frozen=True)
class Decoder:
    """What an engine decodes with: its device, streams, state and graphs."""

    runtime: Runtime
    stream: Stream
    grammar: GrammarStream
    parts: DecodeParts
    graphs: StepGraphs
    config: ResolvedConfig


class ModelRunner:
    """Issues the work of steps. `guidance` decides whether drafts are masked. `holds_ended`: whether it has matchers of
    requests that have ended, which `vacate` may let go of."""

    def __init__(self, decoder: Decoder, guidance: DraftGuidance) -> None:
        self.guidance = guidance
        self.num_iterations = 0
        self.holds_ended = False
        self._runtime, self.stream = decoder.runtime, decoder.stream
        self._grammar, self._parts, self.graphs = decoder.grammar, decoder.parts, decoder.graphs
        self._max_batch = decoder.config.max_batch
        self._rings = ResultRings(self._runtime, self.stream, self._parts.state, self._parts.outputs)
        self._attachments = Attachments(self._grammar)
        self._offers: dict[int, OfferBuffers] = {}
        self._tap: StepTap | None = None
        buffers = ReadingBuffers(self._parts, decoder.config.prefill_chunk, self._max_batch)
        self.prefill = Prefill(self._runtime, self.stream, self._grammar, self._parts, buffers)
        self._reader = PromptReader(
            self.prefill, self.graphs, self._attachments, self._offers_of, self.drop_snapshots
        )

    def set_recorder(self, recorder: Recorder) -> None:
        """Let `recorder` see what gets a slot."""
        self._reader.opener.recorder = recorder

    def set_tap(self, tap: StepTap) -> None:
        """Let `tap` see what iterations compute."""
        self._tap = self._reader.tap = tap

    # -- a step

    def waits_for_results(self, schedule: Schedule) -> bool:
        """Whether what is in flight must be read before this is launched: for a capture, or for logits processors on
        the host."""
        if not schedule.decoding:
            return False
        plan, _ = self._plan(schedule)
        return plan.processors.on_host or not self.graphs.is_ready(plan)

    def calls_host(self, schedule: Schedule) -> bool:
        """Whether a logits processor on the host is called for a prompt, so that the launch waits for it."""
        return any(sequence.calls_host for sequence, _ in schedule.reading)

    def launch(self, schedule: Schedule) -> InFlightBatch:
        """Launch an iteration of those that decode, and parts of prompts. What can't be launched is in the batch's
        `unopened` and `failures`."""
        batch = InFlightBatch()
        if self._tap is not None:
            self._tap.begin()
        self.release(schedule.released)
        if schedule.moves and not self._move(batch, schedule):
            return batch
        if schedule.decoding:
            self._launch_decoding(batch, schedule)
        if schedule.admitted:
            self._reader.open(batch, schedule.admitted)
        if schedule.reading:
            self._reader.read(batch, schedule.reading)
        if batch.is_launched:
            batch.epoch = self._attachments.epoch
            self._start_results(batch)
        return batch

    def release(self, released: abc.Sequence[Released]) -> None:
        """Slots that requests gave back: their matchers leave with the next snapshot."""
        for sequence, slots in released:
            self._attachments.release(sequence, slots)
            self._reader.release(sequence)
            self.holds_ended |= sequence.is_guided

    def vacate(self, is_idle: bool) -> None:
        """Let go of matchers of requests that have ended, with nothing in flight, where that is worth a wait for the
        device: large ones, or nothing else runs."""
        if not self._attachments.may_vacate(is_idle):
            return
        try:
            self.stream.synchronize()
            self._grammar.synchronize()
        except Exception:  # nothing is in flight that it could concern
            return
        self.holds_ended = not self._attachments.vacate()

    def drop_snapshots(self) -> None:
        """Take what iterations left whose launch failed: the next one must not. Waits for those in flight, which take
        theirs."""
        if not self._grammar.state.num_pending:
            return
        try:
            self._runtime.synchronize()
        finally:
            while self._grammar.state.num_pending:
                self._grammar.state.fetch()

    # -- parts of a step

    def _move(self, batch: InFlightBatch, schedule: Schedule) -> bool:
        """Have pages moved that the host's bookkeeping says are. Without it nothing else may be launched."""
        batch.moving = moving = Moving(schedule.moves)
        try:
            self.stream.launch(move_pages, self._parts, moving)
        except Exception as error:
            moving.error = error
        if moving.error is not None:
            batch.failures.append((schedule.everyone, moving.error))
        return moving.error is None

    def _launch_decoding(self, batch: InFlightBatch, schedule: Schedule) -> None:
        rows = schedule.decoding
        try:
            plan, masks_drafts = self._plan(schedule)
            self._write_pages(schedule.grown)
            self._branch(rows)
            self._decode(rows, plan, masks_drafts)
        except Exception as error:
            broken = [r for r in rows if _captured_failure(r) is not None]
            batch.failures.append((broken or rows, error))
            with suppress(Exception):  # what is in flight fails with this launch, whatever it raises
                self.drop_snapshots()
            return
        batch.decode(plan, rows, masks_drafts)
        self.num_iterations += 1

    def _plan(self, schedule: Schedule) -> tuple[Plan, bool]:
        """The kind of iteration that decodes them, and whether the grammar has a say in its drafts."""
        rows, num_drafts = schedule.decoding, schedule.num_drafts
        batch = bucket(schedule.num_rows, self._max_batch)
        masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
        guides = self.guides(num_drafts, masks_drafts) if any(r.is_guided for r in rows) else Guides.NONE
        own = [sequence.processor for sequence in rows if sequence.processor is not None]
        processors = Processors.of(own) if own else NO_PROCESSORS
        return Plan(batch, num_drafts, guides, processors), masks_drafts

    def guides(self, num_drafts: int, masks_drafts: bool) -> Guides:
        """What the grammar has a say in, in an iteration with guides."""
        masks = masks_drafts and num_drafts > 0 and self._parts.drafter is not None
        return Guides.DRAFTS if masks else Guides.TARGET

    def _decode(self, rows: list[Sequence], plan: Plan, masks_drafts: bool) -> None:
        slots = [slot for sequence in rows for slot in _row_slots(sequence)]
        if self._grammar.proposals is not None and plan.num_drafts:
            self._grammar.proposals.set_guided(masks_drafts)
        self.prepare(plan)
        self.graphs.send_slots(plan, slots)
        if plan.guides or self._parts.has_proposals:
            self._attachments.push(slots)
        self.graphs.run(plan, [*host_rows(rows)] if plan.processors.on_host else ())
        if self._tap is not None:
            self._tap.decode(self.graphs.buffers(plan), len(slots))
        if any(r.request.sampling.logprobs is not None for r in rows):
            most = max(r.request.sampling.top_k for r in rows)
            self.stream.launch(note_logprobs, self._parts, self.graphs.buffers(plan), most)
        for sequence in rows:
            if sequence.search is not None:
                buffers = self.graphs.buffers(plan)
                self.stream.launch(note_offers, self._parts.state, buffers, self._offers_of(sequence))

    def prepare(self, plan: Plan) -> None:
        """Capture the graph of a kind of iteration, where that was not done."""
        if plan in self.graphs.ready:
            return
        if not self.graphs.is_ready(plan):
            self.drop_snapshots()
        self.graphs.prepare(plan)

    def _write_pages(self, grown: abc.Sequence[Sequence]) -> None:
        for sequence in grown:
            pages = pinned_copy(self._runtime, sequence.kv.pages, torch.int32)
            self.stream.launch(write_pages, self._parts.state, sequence.slot, pages)

    def _branch(self, rows: abc.Sequence[Sequence]) -> None:
        """Let texts part that a search goes on with, each under its own matcher."""
        branchings: list[Branching] = []
        attach: dict[int, Matcher | None] = {}
        for sequence in rows:
            branching = sequence.search.take_branching() if sequence.search is not None else None
            if branching is not None:
                branchings.append(branching)
                if sequence.is_guided:
                    attach |= dict.fromkeys(sequence.slots) | {
                        row.slot: row.matcher for row in branching.rows
                    }
        if not branchings:
            return
        inputs = BranchInputs.of(self._runtime, branchings, self._parts.state.page_table.shape[1])
        self.stream.launch(branch, self._parts, inputs)
        if attach:
            self._attachments.change(attach)

    def _offers_of(self, sequence: Sequence) -> OfferBuffers:
        assert sequence.search is not None
        count = sequence.search.num_offers
        if count not in self._offers:
            self._offers[count] = OfferBuffers.allocate(self._parts.state, count)
            self._runtime.publish()
        return self._offers[count]

    def _start_results(self, batch: InFlightBatch) -> None:
        new = [*batch.decoding, *batch.first]
        batch.results = self._rings.start(
            any(r.request.sampling.logprobs is not None for r in new),
            {slot: own for r in new if (own := r.request.gather).generated for slot in _row_slots(r)},
            drafts=batch.plan is not None and batch.plan.num_drafts > 0,
            offers={r.search.num_offers: self._offers_of(r) for r in new if r.search is not None},
        )


def host_rows(rows: abc.Sequence[Sequence]) -> Iterator[HostRows]:
    """The rows of each request of a batch, with their texts so far."""
    for sequence in rows:
        search = sequence.search
        if search is None:
            yield HostRows(sequence, [sequence.output.token_ids])
        else:
            yield HostRows(sequence, [search.answer(number) for number in range(search.num_rows)])


def _row_slots(sequence: Sequence) -> tuple[int, ...]:
    """The slots of its rows in an iteration that is to be launched, or is in flight."""
    return sequence.slots[: 1 if sequence.search is None else sequence.search.num_rows]


def _captured_failure(sequence: Sequence) -> BaseException | None:
    processor = sequence.processor
    return processor.captured.failure if processor is not None and processor.captured is not None else None
