"""The model runner: launches the work of a schedule.

This file chooses each iteration's plan, and the order of launches: page moves, the decode iteration, prompts, copies of
results. The work itself is in other files: the iteration in `step.py` and `graphs.py`, the branching of beams in
`branching.py`, prompts in `prefill.py`, results in `engine/device/results.py`. Warm-up launches the same work for the
padding slot.

A launch waits for the device in three cases only: for logits processors on the host, to capture a graph, and after a
failure. An error that a launch raises may come from earlier work on its stream. So the batch only collects failures,
and the output processor handles them.
"""

from __future__ import annotations

from collections import abc
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.config import ResolvedConfig, Speculation
from weft.core import SamplingParams
from weft.engine.device.results import ResultRings, note_logprobs, note_offers
from weft.engine.device.sampling import SlotSampling
from weft.engine.device.state import DecodeParts, SlotState
from weft.engine.features.processors import HostRows
from weft.engine.kv.pool import Move, MoveKind
from weft.engine.runner.branching import BranchInputs, branch
from weft.engine.runner.draft_guidance import DraftGuidance
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.in_flight import InFlightBatch, PageMoves, PromptInputs, Snapshots
from weft.engine.runner.prefill import Prefill, StepTap, host_rows, pack_parts
from weft.engine.runner.step import NO_PROCESSORS, GuidedLogits, Plan, Processors
from weft.engine.scheduler.scheduler import Released, Schedule
from weft.engine.sequence import Branching, Sequence
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

SHORT_PROMPT = 8
"""The length of a short warm-up prompt. Rows of few tokens use another attention kernel, which must be loaded too."""


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
        self._prefill = Prefill(
            runtime,
            stream,
            grammar_stream,
            parts,
            graphs,
            self.snapshots,
            self._rings,
            max_tokens=config.prefill_chunk,
            max_rows=config.max_batch,
        )

    def set_recorder(self, recorder: FlightRecorder) -> None:
        """Tell `recorder` from now on which sequence gets which slot."""
        self._prefill.recorder = recorder

    def set_tap(self, tap: StepTap) -> None:
        """Call `tap` from now on at each launch."""
        self._tap = self._prefill.tap = tap

    # -- a step

    def waits_for_results(self, schedule: Schedule) -> bool:
        """Whether the host must read the batches in flight before it launches the iteration: a capture needs an idle
        device, and logits processors on the host need the committed texts."""
        if not schedule.decoding:
            return False
        plan, _ = self._plan(schedule)
        return plan.processors.on_host or not self.graphs.is_ready(plan)

    def calls_host(self, schedule: Schedule) -> bool:
        """Whether a prompt to read has a logits processor on the host. Its launch waits for the device."""
        return any(sequence.calls_host for sequence, _ in schedule.reading)

    def launch(self, schedule: Schedule) -> InFlightBatch:
        """Launch page moves, then one iteration, then chunks of prompts. Sequences that can't be launched end up in the
        batch's `unopened` or `failures`."""
        batch = InFlightBatch()
        if self._tap is not None:
            self._tap.begin()
        self.release(schedule.released)
        # Moves come first, since the iteration and the prompts may use moved pages.
        if schedule.moves and not self._move_pages(batch, schedule):
            return batch
        # The iteration comes before the prompts, so that decoding does not wait for them.
        if schedule.decoding:
            self._launch_decoding(batch, schedule)
        if schedule.admitted:
            self._prefill.open(batch, schedule.admitted)
        if schedule.reading:
            self._prefill.read(batch, schedule.reading)
        if batch.is_launched:
            batch.epoch = self.snapshots.epoch
            self._start_results(batch)
        return batch

    def release(self, released: abc.Sequence[Released]) -> None:
        """Release the prompt inputs and logits processors of sequences that released slots. The next snapshot
        detaches the slots' matchers."""
        for sequence, slots in released:
            self.snapshots.release(sequence, slots)
            self._prefill.release(sequence)

    def _move_pages(self, batch: InFlightBatch, schedule: Schedule) -> bool:
        """Launch the page moves. Returns False if that fails: the host's view of the pages is then wrong, and nothing
        else may be launched."""
        batch.moves = moves = PageMoves(schedule.moves)
        try:
            self.stream.launch(move_pages, self.parts, moves)
        except Exception as error:
            moves.error = error
        if moves.error is not None:
            batch.failures.append((schedule.sequences, moves.error))
        return moves.error is None

    def _launch_decoding(self, batch: InFlightBatch, schedule: Schedule) -> None:
        sequences = schedule.decoding
        try:
            plan, masks_drafts = self._plan(schedule)
            for sequence in schedule.grown:
                pages = pinned_copy(self.runtime, sequence.kv.pages, torch.int32)
                self.stream.launch(write_pages, self.parts.state, sequence.slot, pages)
            self._branch(sequences)
            self._decode(sequences, plan, masks_drafts)
        except Exception as error:
            broken = [sequence for sequence in sequences if _captured_failure(sequence) is not None]
            batch.failures.append((broken or sequences, error))
            with suppress(Exception):  # the batches in flight fail with this launch in any case
                self.snapshots.drop_pending()
            return
        batch.decode(plan, sequences, masks_drafts)
        self.num_iterations += 1

    def _plan(self, schedule: Schedule) -> tuple[Plan, bool]:
        """Make the plan of the iteration. Also returns whether the grammar masks drafts, the host's proposals
        included."""
        sequences, num_drafts = schedule.decoding, schedule.num_drafts
        batch = bucket(schedule.num_rows, self.config.max_batch)
        masks_drafts = num_drafts > 0 and self.guidance.choose((batch, num_drafts))
        is_guided = any(sequence.is_guided for sequence in sequences)
        guided_logits = self._guided_logits(num_drafts, masks_drafts) if is_guided else GuidedLogits.NONE
        requested = [sequence.processor for sequence in sequences if sequence.processor is not None]
        processors = Processors.of(requested) if requested else NO_PROCESSORS
        return Plan(batch, num_drafts, guided_logits, processors), masks_drafts

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

    def _decode(self, sequences: list[Sequence], plan: Plan, masks_drafts: bool) -> None:
        slots = [slot for sequence in sequences for slot in _row_slots(sequence)]
        if self.grammar_stream.proposals is not None and plan.num_drafts:
            self.grammar_stream.proposals.set_guided(masks_drafts)
        self.prepare(plan)
        self.graphs.send_slots(plan, slots)
        if plan.guided_logits or self.parts.has_proposals:
            # Push last, after everything that may fail. Only the graph takes the snapshot; if it did not run, the next
            # iteration would take it.
            self.snapshots.push(slots)
        on_host = plan.processors.on_host
        self.graphs.run(plan, [_host_rows(sequence) for sequence in sequences] if on_host else ())
        buffers = self.graphs.buffers(plan)
        if self._tap is not None:
            self._tap.decode(buffers, len(slots))
        if any(sequence.request.sampling.logprobs is not None for sequence in sequences):
            max_top_k = max(sequence.request.sampling.top_k for sequence in sequences)
            self.stream.launch(note_logprobs, self.parts, buffers, max_top_k)
        for sequence in sequences:
            if sequence.search is not None:
                offers = self._rings.offer_buffers(sequence.search.num_offers)
                self.stream.launch(note_offers, self.parts.state, buffers, offers)

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
        """Load and compile all kernels for this thread: read short and long prompts, alone and together, and capture
        the graph of every plan in `ordinary_plans`. The engine must be idle.

        The prompts use the padding slot and page 0, so they leave no state behind.
        """
        chunk = self.config.prefill_chunk
        self.snapshots.drop_pending()
        self._read_padding([SHORT_PROMPT], GuidedLogits.TARGET)
        self._read_padding([chunk], GuidedLogits.NONE)
        if self.config.max_batch > 1:
            self._read_padding([SHORT_PROMPT] * 2, GuidedLogits.TARGET)
            self._read_padding([SHORT_PROMPT, chunk - SHORT_PROMPT], GuidedLogits.NONE)
        for plan in self.ordinary_plans(speculation):
            self.prepare(plan)

    def ordinary_plans(self, speculation: Speculation) -> list[Plan]:
        """Every plan that requests without logits processors can need, without duplicates."""
        max_batch = self.config.max_batch
        sizes = {
            (bucket(num_rows, max_batch), speculation.draft_tokens(num_rows))
            for num_rows in range(1, max_batch + 1)
        }
        sizes |= {(batch, 0) for batch, _ in sizes}  # for requests that want no drafts
        plans = []
        for batch, num_drafts in sorted(sizes):
            masked = {self._guided_logits(num_drafts, masks_drafts) for masks_drafts in self.guidance.choices}
            plans += [Plan(batch, num_drafts, guided) for guided in (GuidedLogits.NONE, *sorted(masked))]
        return plans

    def _read_padding(self, lengths: abc.Sequence[int], guided_logits: GuidedLogits) -> None:
        """Read prompts of these lengths together in the padding slot, sample after them, and wait for the result."""
        parts, prefill = self.parts, self._prefill
        vocab_size, max_length = parts.model.config.vocab_size, self.config.max_seq_len - 1
        prompts = []
        for length in lengths:
            tokens = [0] * max(min(length, max_length), 1)
            sampling = SlotSampling(self.runtime, SamplingParams(), tokens, vocab_size)
            prompts.append(PromptInputs((parts.state.dummy,), np.array(tokens, dtype=np.int64), (), sampling))
        prefill.open_prompts(prompts)
        shares, buffers = [(prompt, prompt.length) for prompt in prompts], prefill.buffers
        for prompt_parts in pack_parts(shares, buffers.max_tokens, buffers.max_rows):
            plan = Plan(sum(part.ends for part in prompt_parts), 0, guided_logits)
            prefill.forward(prompt_parts, plan, lambda: self.grammar_stream.push([], {}))
        self.stream.synchronize()
        for prompt in prompts:
            if prompt.error is not None:
                raise prompt.error


def _host_rows(sequence: Sequence) -> HostRows:
    """A decoding sequence's rows for the host's logits processors."""
    search = sequence.search
    if search is None:
        return host_rows(sequence, [sequence.output.token_ids])
    return host_rows(sequence, [search.answer(beam) for beam in range(search.num_rows)])


def _row_slots(sequence: Sequence) -> tuple[int, ...]:
    """The slots of a sequence's rows in its next iteration, or in the one in flight."""
    return sequence.slots[: 1 if sequence.search is None else sequence.search.num_rows]


def _captured_failure(sequence: Sequence) -> BaseException | None:
    processor = sequence.processor
    return processor.captured.failure if processor is not None and processor.captured is not None else None


# -- pages


def write_pages(state: SlotState, slot: int, pages: Tensor) -> None:
    """Write a slot's row of the page table. `pages`: int32 [n], pinned. A device function."""
    state.page_table[slot, : pages.shape[0]] = pages.to(state.page_table.device, non_blocking=True)


def move_pages(parts: DecodeParts, moves: PageMoves) -> None:
    """Copy the pages in order, in every cache. An exception becomes the moves' error. A device function."""
    try:
        for move in moves.moves:
            _move_page(parts, move)
    except Exception as error:
        moves.error = error


def _move_page(parts: DecodeParts, move: Move) -> None:
    for number, cache in enumerate(parts.caches):
        if move.kind is MoveKind.COPY:
            cache.page(move.target).copy_(cache.page(move.source))
            continue
        assert parts.host is not None
        host_pages = parts.host.tensors[number]
        if move.kind is MoveKind.OFFLOAD:
            host_pages[move.target].copy_(cache.page(move.source), non_blocking=True)
        else:
            cache.page(move.target).copy_(host_pages[move.source], non_blocking=True)
