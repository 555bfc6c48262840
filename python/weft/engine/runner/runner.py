"""The model runner: launches the work of a schedule.

This file chooses each iteration's plan, and the order of launches: states to keep, page moves, the slots of admitted
sequences, kept states to load, iterations, copies of results. The work itself is in other files: the iteration in
`step.py` and `graphs.py`, the branching of beams in `branching.py`, prompts in `prompts.py`, moves of states in
`states.py`, results in `engine/device/results.py`.

Mostly one iteration does a step's whole work: its sampling rows decode, and prompts that fit are read beside them.
Before it, an iteration without sampling rows reads each further portion of the prompts. It also reads the prompts if
the sampling rows have logits processors or lookahead windows, so that these need no more graphs.

A launch waits for the device in four cases only: for logits processors on the host, to capture a graph, after a
failure, and if a step reads more than three portions of prompts, since three pinned buffers carry their inputs.

An error that a launch raises may come from earlier work on its stream. So the batch only collects failures, and the
output processor handles them.
"""

from __future__ import annotations

from collections import abc
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from weft.config import ResolvedConfig, Speculation
from weft.engine.device.results import ResultRings, note_logprobs, note_offers
from weft.engine.device.state import DecodeParts, StepBuffers
from weft.engine.features.processors import HostRows, failure
from weft.engine.kv.pool import Move, MoveKind
from weft.engine.runner.branching import BranchInputs, branch
from weft.engine.runner.draft_guidance import DraftGuidance
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.in_flight import InFlightBatch, PageMoves, Snapshots
from weft.engine.runner.prompts import PromptPart, Prompts, pack_parts, write_pages
from weft.engine.runner.states import SlotStates
from weft.engine.runner.step import NO_PROCESSORS, GuidedLogits, Plan, Processors
from weft.engine.scheduler.scheduler import Released, Schedule
from weft.engine.sequence import Branching, Sequence, Stage
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

CONTEXT_SIZES = 64, 512
"""On a GPU, the numbers of prompt tokens for which iterations are captured, besides `prefill_chunk`. There, torch's
matrix products compute padding too."""


class StepTap(Protocol):
    """Observes every launch, and may copy the tensors that it computes."""

    def begin(self) -> None:
        """Called before a step's launches."""

    def launched(
        self, buffers: StepBuffers, slots: abc.Sequence[int], parts: abc.Sequence[PromptPart]
    ) -> None:
        """Called after the launch of an iteration that reads `parts`. The first sampling rows of `buffers` belong to
        `slots`; the others are padding."""


def bucket(num_rows: int, max_batch: int) -> int:
    """The smallest graph batch size that fits `num_rows`: a power of two, or `max_batch`."""
    return min(1 << (num_rows - 1).bit_length(), max_batch)


class ModelRunner:
    """Issues the work of steps to `stream` and to the grammar stream. `guidance` decides whether the grammar masks
    drafts; `snapshots` pushes the snapshots of its launches."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        grammar_stream: GrammarStream,
        parts: DecodeParts,
        graphs: StepGraphs,
        config: ResolvedConfig,
        guidance: DraftGuidance,
    ) -> None:
        self.runtime, self.stream, self.grammar_stream = runtime, stream, grammar_stream
        self.parts, self.graphs, self.config = parts, graphs, config
        self.guidance = guidance
        self.snapshots = Snapshots(runtime, stream, grammar_stream)
        self.num_iterations = 0
        self._rings = ResultRings(runtime, stream, parts.state, parts.outputs)
        self._tap: StepTap | None = None
        states = parts.kv.states
        self._states = SlotStates(runtime, stream, states) if states is not None else None
        self._prompts = Prompts(
            runtime,
            stream,
            grammar_stream,
            parts,
            states=self._states,
            max_tokens=config.prefill_chunk,
            close_graphs_of=graphs.close_graphs_of,
        )

    def set_recorder(self, recorder: FlightRecorder) -> None:
        """Tell `recorder` from now on which sequence gets which slot."""
        self._prompts.recorder = recorder

    def set_tap(self, tap: StepTap) -> None:
        """Call `tap` from now on at each launch."""
        self._tap = tap

    # -- a step

    def waits_for_results(self, schedule: Schedule) -> bool:
        """Whether the host must read the batches in flight before it launches the schedule: a capture needs an idle
        device, and logits processors on the host need the committed texts."""
        ending = schedule.ending
        sampling = [*schedule.decoding, *ending]
        # A new sequence takes the entry of its captured processor only when its slots are opened.
        if any(sequence.processor is not None and sequence.processor.captured is None for sequence in ending):
            return True
        num_tokens = sum(count for _, count in schedule.reading) - len(ending)
        reads = num_tokens > 0 or (bool(ending) and self.parts.drafter is not None)
        num_parts = len(schedule.reading) + len(schedule.saves)
        is_one = num_tokens <= self.config.prefill_chunk and num_parts <= self.graphs.max_parts
        if schedule.saves and self.parts.drafter is not None:  # see `_packed`
            is_one = False
        sizes: list[int | None] = [None]
        if reads:
            sizes = [self._context_size(num_tokens)] if is_one else [*self.context_sizes]
        plans = [self._plan(sampling, schedule.num_drafts, size)[0] for size in sizes] if sampling else []
        if reads and not (is_one and plans and plans[0].num_context):  # further iterations read prompts
            plans += [self._reading_plan(size) for size in self.context_sizes]
        return any(plan.processors.on_host or not self.graphs.is_ready(plan) for plan in plans)

    def launch(self, schedule: Schedule) -> InFlightBatch:
        """Launch page moves, the opening of slots, and iterations. Sequences that can't be launched end up in the
        batch's `unopened` or `failures`."""
        batch = InFlightBatch()
        if self._tap is not None:
            self._tap.begin()
        self.release(schedule.released)
        # Moves come first, since the iterations may use moved pages, and other sequences the slots of settled states.
        moves = schedule.moves or schedule.settles or schedule.loads
        if moves and not self._move(batch, schedule):
            return batch
        if schedule.admitted:
            self._prompts.open(batch, schedule.admitted)
        if schedule.loads and not self._load_states(batch, schedule):
            return batch
        if schedule.decoding or schedule.reading:
            self._launch_iterations(batch, schedule)
        if batch.is_launched:
            batch.epoch = self.snapshots.epoch
            self._start_results(batch)
        return batch

    def can_repeat(self, batch: InFlightBatch) -> bool:
        """Whether `repeat` can launch the batch's iteration again: it is one graph, and nothing but tokens is read."""
        return (
            batch.graph is not None
            and not (batch.first or batch.reading or batch.unopened or batch.failures)
            and self._tap is None
            and all(
                sequence.search is None
                and sequence.request.sampling.logprobs is None
                and not sequence.request.gather.generated
                for sequence in batch.decoding
            )
        )

    def repeat(self, last: InFlightBatch) -> InFlightBatch | None:
        """Launch the iteration of `last` again, for the same sequences in the same slots. Returns its batch, which is
        `last` itself if the host has read it. None if the iteration would be another one (the grammar masks drafts, or
        no longer does), and if a tap observes launches."""
        plan, graph = last.plan, last.graph
        assert plan is not None and graph is not None
        if plan.guided_logits and plan.num_drafts:
            masks_drafts = self.guidance.choose((plan.batch, plan.num_drafts))
            if masks_drafts != last.masks_drafts:
                return None
        if self._tap is not None:
            return None
        try:
            if plan.guided_logits or self.parts.has_proposals:
                self.snapshots.push(last.slots)
            results = self._rings.start_after(graph, plan.num_drafts > 0)
        except Exception as error:
            failed = InFlightBatch(failures=[(last.decoding, error)])
            with suppress(Exception):  # the batches in flight fail with this launch in any case
                self.snapshots.drop_pending()
            return failed
        batch = last
        if last.results is None:
            last.decode_again()
        else:
            batch = InFlightBatch(plan, graph, masks_drafts=last.masks_drafts)
            batch.launch(last.decoding)
        self.graphs.num_launched += 1
        self.num_iterations += 1
        batch.epoch, batch.results = self.snapshots.epoch, results
        return batch

    def release(self, released: abc.Sequence[Released]) -> None:
        """Release the prompt inputs and logits processors of sequences that released slots. The next snapshot
        detaches the slots' matchers."""
        for sequence, slots in released:
            self.snapshots.release(sequence, slots)
            self._prompts.release(sequence)

    def _move(self, batch: InFlightBatch, schedule: Schedule) -> bool:
        """Launch the copies of states to keep, and the page moves. Returns False if that fails: the host's view of what
        is cached is then wrong, and nothing else may be launched."""
        batch.moves = moves = PageMoves(schedule.moves)
        try:
            if self._states is not None:
                self._states.settle(schedule.settles, moves)
            if schedule.moves:
                self.stream.launch(move_pages, self.parts, moves)
        except Exception as error:
            moves.error = error
        return self._have_moved(batch, schedule)

    def _load_states(self, batch: InFlightBatch, schedule: Schedule) -> bool:
        """Launch the copies of kept states to the slots of admitted sequences. Returns False as `_move`."""
        assert self._states is not None and batch.moves is not None
        try:
            self._states.load(schedule.loads, batch.moves)
        except Exception as error:
            batch.moves.error = error
        return self._have_moved(batch, schedule)

    def _have_moved(self, batch: InFlightBatch, schedule: Schedule) -> bool:
        assert batch.moves is not None
        if batch.moves.error is not None:
            batch.failures.append((schedule.sequences, batch.moves.error))
        return batch.moves.error is None

    def _launch_iterations(self, batch: InFlightBatch, schedule: Schedule) -> None:
        """Launch the iterations of a step. If that fails, its sequences fail. If captured logits processors are the
        cause, only their sequences fail, and the others are launched without them."""
        decoding, reading = schedule.decoding, self._reading(schedule)
        while decoding or reading:
            ending = [sequence for sequence, part in reading.items() if part.is_last]
            try:
                plan, masks_drafts = self._issue(schedule, decoding, ending, [*reading.values()])
                break
            except Exception as error:
                sampling = [*decoding, *ending]
                broken = {
                    each: failed for each in sampling if (failed := _captured_failure(each)) is not None
                }
                if broken:
                    batch.failures += [([sequence], failed) for sequence, failed in broken.items()]
                else:
                    batch.failures.append(([*dict.fromkeys([*sampling, *reading])], error))
                with suppress(Exception):  # the batches in flight fail with this launch in any case
                    self.snapshots.drop_pending()
                if not broken:
                    return
                decoding = [sequence for sequence in decoding if sequence not in broken]
                reading = {sequence: part for sequence, part in reading.items() if sequence not in broken}
        else:
            return
        if decoding or ending:
            batch.plan, batch.graph, batch.masks_drafts = plan, self.graphs.graph(plan), masks_drafts
        batch.launch(decoding)
        for sequence, part in reading.items():
            part.prompt.position = part.stop
            batch.num_context += part.count
            batch.read(sequence, part.prompt, part.is_last)
            if part.is_last:
                sequence.move(Stage.GENERATION)

    def _issue(
        self,
        schedule: Schedule,
        decoding: list[Sequence],
        ending: list[Sequence],
        parts: abc.Sequence[PromptPart],
    ) -> tuple[Plan, bool]:
        """Issue the iterations that read `parts` and sample for the sequences in `decoding` and `ending`. Returns the
        plan of the iteration that samples, and whether the grammar masks its drafts."""
        portions = [*self._packed(parts)]
        has_drafter = self.parts.drafter is not None
        size = None
        if portions or (ending and has_drafter):  # a drafter reads a prompt's first token only beside context
            size = self._context_size(sum(part.count for part in portions[-1]) if portions else 0)
        plan, masks_drafts = self._plan([*decoding, *ending], schedule.num_drafts, size)
        if decoding or ending:
            # First, since it may fail. If a processor is the cause, all other work is issued again, and no state may
            # have read a token before that.
            self.prepare(plan)
        for part in parts:
            if part.prompt.context:
                self._prompts.read_outputs(part)
        beside: list[PromptPart] = []
        if plan.num_context and portions and (decoding or ending):
            beside = portions.pop()
        elif ending and has_drafter and not plan.num_context:
            # If a prompt's last token is the first after the cached ones, an iteration reads it for the drafter, before
            # the token is decoded.
            lone = [replace(part, stop=part.stop + 1) for part in parts if part.is_lone]
            if self._states is None:
                portions += self._packed(lone)
            else:
                for part in lone:  # the token is decoded later, from the state before it
                    self._states.keep(part.prompt.slot)
                    self._read([part])
                    self._states.put_back(part.prompt.slot)
        for portion in portions:
            self._read(portion)
        if decoding or ending:
            self._sample(schedule, decoding, ending, plan, masks_drafts, beside)
        return plan, masks_drafts

    def _packed(self, parts: abc.Iterable[PromptPart]) -> abc.Iterator[list[PromptPart]]:
        """Pack parts of prompts into iterations."""
        # A drafter may keep a slot's inputs from one iteration to the next, so it reads one part of a slot in each.
        has_drafter = self.parts.drafter is not None
        return pack_parts(parts, self.config.prefill_chunk, self.graphs.max_parts, one_each=has_drafter)

    def _reading(self, schedule: Schedule) -> dict[Sequence, PromptPart]:
        """The parts of prompts to read, by sequence. A part may have no tokens, if only the prompt's last is left."""
        states = self.parts.kv.states
        parts: dict[Sequence, PromptPart] = {}
        for sequence, count in schedule.reading:
            prompt = self._prompts.inputs(sequence)
            if prompt is not None:
                stop = min(prompt.position + count, prompt.length - 1)
                parts[sequence] = PromptPart(prompt, prompt.position, stop)
        for sequence, position, row in schedule.saves:
            if sequence in parts and states is not None:
                part = parts[sequence]
                save = position, states.first_snapshot + row
                parts[sequence] = replace(part, saves=(*part.saves, save))
        return parts

    def _read(self, portion: abc.Sequence[PromptPart]) -> None:
        """Launch an iteration without sampling rows, which reads parts of prompts."""
        self._run(self._reading_plan(self._context_size(sum(part.count for part in portion))), [], portion)

    def _sample(
        self,
        schedule: Schedule,
        decoding: list[Sequence],
        ending: list[Sequence],
        plan: Plan,
        masks_drafts: bool,
        portion: abc.Sequence[PromptPart],
    ) -> None:
        """Launch the iteration with sampling rows. If the plan has context, it also reads a portion of the prompts."""
        for sequence in schedule.grown:
            state, kv = self.parts.state, sequence.kv
            pages = pinned_copy(self.runtime, kv.pages, torch.int32)
            self.stream.launch(write_pages, state.page_table, sequence.slot, pages)
            if kv.windowed is not None:
                pages = pinned_copy(self.runtime, kv.windowed.pages, torch.int32)
                self.stream.launch(write_pages, state.windowed_table, sequence.slot, pages)
        self._branch(decoding)
        for sequence in ending:
            guide = sequence.guide
            if guide is not None and guide.matcher is not None:
                self.snapshots.change({sequence.slot: guide.matcher})
        sampling = [*decoding, *ending]
        slots = [slot for sequence in sampling for slot in _row_slots(sequence)]
        if self.grammar_stream.proposals is not None and plan.num_drafts:
            self.grammar_stream.proposals.set_guided(masks_drafts)
        rows: list[HostRows] = []
        if plan.processors.on_host:
            rows = [_host_rows(sequence) for sequence in decoding]
            rows += [_first_rows(sequence) for sequence in ending]
        self._run(plan, slots, portion, rows)
        self._note(sampling, self.graphs.buffers(plan))

    def _note(self, sampling: abc.Sequence[Sequence], buffers: StepBuffers) -> None:
        """Launch the work that writes log-probabilities and beam candidates (offers) for the sequences that need
        them."""
        if any(sequence.request.sampling.logprobs is not None for sequence in sampling):
            max_top_k = max(sequence.request.sampling.top_k for sequence in sampling)
            self.stream.launch(note_logprobs, self.parts, buffers, max_top_k)
        for sequence in sampling:
            if sequence.search is not None:
                offers = self._rings.offer_buffers(sequence.search.num_offers)
                self.stream.launch(note_offers, self.parts.state, buffers, offers)

    def _run(
        self,
        plan: Plan,
        slots: list[int],
        context: abc.Sequence[PromptPart],
        rows: abc.Sequence[HostRows] = (),
    ) -> None:
        """Launch an iteration: send its inputs, push its snapshot, and replay its graph."""
        self.prepare(plan)
        self.graphs.send(plan, slots, context)
        if plan.guided_logits or self.parts.has_proposals:
            # Push last, after everything that may fail. Only the graph takes the snapshot; if it did not run, the next
            # iteration would take it.
            self.snapshots.push(slots)
        self.graphs.run(plan, rows)
        self.num_iterations += 1
        if self._tap is not None:
            self._tap.launched(self.graphs.buffers(plan), slots, context)

    def _plan(
        self, sampling: abc.Sequence[Sequence], num_drafts: int, num_context: int | None
    ) -> tuple[Plan, bool]:
        """Make the plan of an iteration with sampling rows. It also reads prompts if `num_context` is a number, unless
        the rows have logits processors or lookahead windows. Also returns whether the grammar masks drafts, the host's
        proposals included."""
        num_rows = sum(len(_row_slots(sequence)) for sequence in sampling)
        batch = bucket(max(num_rows, 1), self.config.max_batch)
        masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
        is_guided = any(sequence.is_guided for sequence in sampling)
        guided_logits = self._guided_logits(num_drafts, masks_drafts) if is_guided else GuidedLogits.NONE
        requested = [sequence.processor for sequence in sampling if sequence.processor is not None]
        if num_context is None or requested or self.parts.state.window is not None:
            processors = Processors.of(requested) if requested else NO_PROCESSORS
            return Plan(batch, num_drafts, guided_logits, processors), masks_drafts
        plan = Plan(self.config.max_batch, num_drafts, guided_logits, num_context=num_context)
        return plan, masks_drafts

    def _reading_plan(self, num_context: int) -> Plan:
        """The plan of an iteration that only reads prompts."""
        return Plan(self.config.max_batch, 0, num_context=num_context)

    def _context_size(self, num_tokens: int) -> int:
        """The smallest number of prompt tokens for which iterations are captured and that is at least `num_tokens`."""
        return next(size for size in self.context_sizes if size >= num_tokens)

    def _guided_logits(self, num_drafts: int, masks_drafts: bool) -> GuidedLogits:
        """The logits that the grammar masks in an iteration with guides."""
        masks = masks_drafts and num_drafts > 0 and self.parts.drafter is not None
        return GuidedLogits.DRAFTS if masks else GuidedLogits.TARGET

    def _branch(self, sequences: abc.Sequence[Sequence]) -> None:
        """Launch the branching of beam searches, and attach each beam's matcher with the next snapshot."""
        branchings: list[Branching] = []
        matchers: dict[int, Matcher | None] = {}
        for sequence in sequences:
            branching = sequence.search.take_branching() if sequence.search is not None else None
            if branching is not None:
                branchings.append(branching)
                if sequence.is_guided:
                    matchers |= dict.fromkeys(sequence.slots)  # detaches the matchers of ended beams
                    matchers |= {row.slot: row.matcher for row in branching.rows}
        if not branchings:
            return
        inputs = BranchInputs.of(self.runtime, branchings, self.parts.state.page_table.shape[1])
        self.stream.launch(branch, self.parts, inputs)
        if matchers:
            self.snapshots.change(matchers)

    def prepare(self, plan: Plan) -> None:
        """Capture the graph of a plan, unless it is captured already."""
        if plan in self.graphs.ready:
            return
        if not self.graphs.is_ready(plan):
            self.snapshots.drop_pending()  # the capture's warm-up pushes a snapshot, and must take that one
        self.graphs.prepare(plan)

    def _start_results(self, batch: InFlightBatch) -> None:
        sampled = [*batch.decoding, *batch.first]
        gathers = ((sequence, sequence.request.gather) for sequence in sampled)
        batch.results = self._rings.start(
            any(sequence.request.sampling.logprobs is not None for sequence in sampled),
            {
                slot: gather
                for sequence, gather in gathers
                if gather.generated
                for slot in _row_slots(sequence)
            },
            drafts=batch.plan is not None and batch.plan.num_drafts > 0,
            offers={sequence.search.num_offers for sequence in sampled if sequence.search is not None},
        )

    # -- warm-up

    def warm_up(self, speculation: Speculation) -> None:
        """Load and compile all kernels for this thread, and capture the graph of every plan in `ordinary_plans`. The
        engine must be idle. The padding slot and page 0 take part, so no state is left behind."""
        self.snapshots.drop_pending()
        for plan in self.ordinary_plans(speculation):
            self.prepare(plan)

    def ordinary_plans(self, speculation: Speculation) -> list[Plan]:
        """Every plan that requests without logits processors can need, without duplicates."""
        max_batch = self.config.max_batch
        sizes = {
            (bucket(num_rows, max_batch), num_drafts)
            for num_rows in range(1, max_batch + 1)
            for num_drafts in speculation.draft_numbers(num_rows)
        }
        sizes |= {(batch, 0) for batch, _ in sizes}  # for requests that want no drafts
        kinds = [(batch, num_drafts, 0) for batch, num_drafts in sorted(sizes)]
        # Iterations that read prompts have the largest batch. With lookahead windows they have no sampling rows.
        numbers = {0} if self.parts.state.window is not None else {num_drafts for _, num_drafts in sizes}
        kinds += [(max_batch, number, size) for number in sorted(numbers) for size in self.context_sizes]
        plans = []
        for batch, num_drafts, num_context in kinds:
            masked = {self._guided_logits(num_drafts, masks_drafts) for masks_drafts in self.guidance.choices}
            plans += [
                Plan(batch, num_drafts, guided, num_context=num_context)
                for guided in (GuidedLogits.NONE, *sorted(masked))
            ]
        return plans

    @property
    def context_sizes(self) -> list[int]:
        """The numbers of prompt tokens for which iterations are captured, smallest first."""
        chunk = self.config.prefill_chunk
        if self.runtime.device.type == "cpu":  # no kernel computes padding there
            return [chunk]
        return [*(size for size in CONTEXT_SIZES if size < chunk), chunk]


def _host_rows(sequence: Sequence) -> HostRows:
    """A decoding sequence's rows for the host's logits processors."""
    search = sequence.search
    answers: list[abc.Sequence[int]] = [sequence.output.token_ids]
    if search is not None:
        answers = [search.answer(beam) for beam in range(search.num_rows)]
    return HostRows(sequence.processor, sequence.id, sequence.prompt, answers, search is not None)


def _first_rows(sequence: Sequence) -> HostRows:
    """The row of a sequence's first token for the host's logits processors. It stands for all beams of a search."""
    beam, answers = sequence.request.beam, [sequence.output.token_ids]
    copies = 1 if beam is None else beam.width_after(0)
    return HostRows(sequence.processor, sequence.id, sequence.prompt, answers, beam is not None, copies)


def _row_slots(sequence: Sequence) -> tuple[int, ...]:
    """The slots of a sequence's rows in its next iteration, or in the one in flight."""
    return sequence.slots[: 1 if sequence.search is None else sequence.search.num_rows]


def _captured_failure(sequence: Sequence) -> BaseException | None:
    """The failure of a sequence's captured processor, as the error of the sequence; None without one."""
    captured = sequence.processor.captured if sequence.processor is not None else None
    if captured is None or captured.failure is None:
        return None
    return failure(captured.name, captured.failure)


# -- pages


def move_pages(parts: DecodeParts, moves: PageMoves) -> None:
    """Copy the pages in order, in every cache. An exception becomes the moves' error. A device function."""
    try:
        for move in moves.moves:
            _move_page(parts, move)
    except Exception as error:
        moves.error = error


def _move_page(parts: DecodeParts, move: Move) -> None:
    if move.kind is MoveKind.COPY_WINDOWED:
        for group in parts.kv.windowed_groups:
            group[:, move.target].copy_(group[:, move.source])
        return
    groups = (group for cache in parts.caches for group in cache.groups)
    for number, group in enumerate(groups):
        if move.kind is MoveKind.COPY:
            group[:, move.target].copy_(group[:, move.source])
            continue
        assert parts.host is not None
        host_pages = parts.host.tensors[number]
        if move.kind is MoveKind.OFFLOAD:
            host_pages[move.target].copy_(group[:, move.source], non_blocking=True)
        else:
            group[:, move.target].copy_(host_pages[move.source], non_blocking=True)
