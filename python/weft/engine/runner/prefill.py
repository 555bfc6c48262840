"""Prefill: fills the slots of admitted sequences, reads their prompts in chunks, and samples first tokens.

`Prefill.open` fills the slots. `Prefill.read` packs chunks of prompts (`PromptPart`) into eager forwards. When a prompt
ends, the functions of a decode iteration (`step.py`) sample its first token, without drafts. Only the forward differs:
it reads many positions of a row.

Each forward sends its inputs from its own pinned memory, so the host may prepare the next forward immediately. Chunks
of different prompts may alternate, since all state that a prompt has between two chunks is in its slot.

If a device function fails for one prompt, only that prompt fails. `guarded` stores the error in `PromptInputs.error`,
later work skips the prompt, and the host ends the sequence when it reads the batch.

Suffixes: B rows, R rows whose prompts end in this forward, N tokens of all rows, F width of the auxiliary hidden
states.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from weft.core.request import LOGITS
from weft.engine.device.results import ResultRings, note_logprobs, note_offers
from weft.engine.device.sampling import SlotSampling, write_tables
from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.engine.features.processors import CapturedProcessor, CapturedProcessors, HostRows, HostWork
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.in_flight import InFlightBatch, PromptInputs, Snapshots
from weft.engine.runner.step import (
    GuidedLogits,
    Plan,
    Processors,
    owes_commit,
    process_logits,
    sample_and_verify,
    take_proposals,
    write_windows,
)
from weft.engine.sequence import Sequence, Stage
from weft.guided.grammar_stream import GrammarStream
from weft.models.outputs import collecting, mark_output
from weft.ops.attention import Rows
from weft.ops.rows import copy_rows_
from weft.ops.slots import RECORD_WORDS, keep_logits_
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream
from weft.spec.base import PromptParts, Span

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

MAX_ROWS = 64
"""The largest number of rows in a forward. The buffers have logits for each row."""


class StepTap(Protocol):
    """Observes every launch, and may copy the tensors that it computes."""

    def begin(self) -> None:
        """Called before a step's launches."""

    def read(self, parts: abc.Sequence[PromptPart], step: StepBuffers) -> None:
        """Called after the launch of a forward over `parts`. `step` has a row for each prompt that ends in it."""

    def decode(self, buffers: StepBuffers, num_rows: int) -> None:
        """Called after the launch of a decode iteration. The first `num_rows` rows of `buffers` belong to sequences;
        the others are padding."""


@dataclass(frozen=True)
class PromptPart:
    """A chunk of a prompt: its positions start..stop-1."""

    prompt: PromptInputs
    start: int
    stop: int

    @property
    def count(self) -> int:
        """The number of positions."""
        return self.stop - self.start

    @property
    def ends(self) -> bool:
        """Whether this is the prompt's last chunk, after which the first token is sampled."""
        return self.stop == self.prompt.length


def pack_parts(
    shares: Iterable[tuple[PromptInputs, int]], num_tokens: int, num_rows: int
) -> Iterator[list[PromptPart]]:
    """Split the tokens to read into forwards of at most `num_tokens` tokens and `num_rows` rows. `shares` has the
    number of tokens to read for each prompt, from its `position` on."""
    parts: list[PromptPart] = []
    room = num_tokens
    for prompt, count in shares:
        start, end = prompt.position, prompt.position + count
        while start < end:
            part = PromptPart(prompt, start, min(end, start + room))
            parts.append(part)
            start, room = part.stop, room - part.count
            if not room or len(parts) == num_rows:
                yield parts
                parts, room = [], num_tokens
    if parts:
        yield parts


class Prefill:
    """Fills slots and reads prompts, on the engine's `stream` and the grammar stream.

    One forward reads at most `max_tokens` tokens of `max_rows` rows. `recorder` learns which sequence gets which slot.
    `tap` is called after each forward.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        grammar_stream: GrammarStream,
        parts: DecodeParts,
        graphs: StepGraphs,
        snapshots: Snapshots,
        rings: ResultRings,
        *,
        max_tokens: int,
        max_rows: int,
    ) -> None:
        self.recorder: FlightRecorder | None = None
        self.tap: StepTap | None = None
        self.buffers = PromptBuffers(parts, max_tokens, max_rows)
        self._runtime, self._stream = runtime, stream
        self._grammar_stream, self._parts = grammar_stream, parts
        self._graphs, self._snapshots, self._rings = graphs, snapshots, rings
        self._captured = CapturedProcessors(close_graphs=graphs.close_graphs_of)
        self._prompts: dict[Sequence, PromptInputs] = {}
        self._in_use: dict[Sequence, CapturedProcessor] = {}

    # -- opening slots

    def open(self, batch: InFlightBatch, admitted: abc.Sequence[Sequence]) -> None:
        """Fill the slots of admitted sequences, on the device and in the host's proposals. Sequences that fail go to
        the batch's `unopened` or `failures`."""
        prompts: dict[Sequence, PromptInputs] = {}
        for sequence in admitted:
            try:
                prompts[sequence] = self._inputs_of(sequence)
            except Exception as error:
                batch.unopened.append((sequence, error))
        if not prompts:
            return
        try:
            self.open_prompts([*prompts.values()])
        except Exception as error:
            batch.failures.append(([*prompts], error))
        else:
            self._prompts |= prompts

    def _inputs_of(self, sequence: Sequence) -> PromptInputs:
        """Make the inputs of a sequence's prompt. If it raises, only this sequence fails."""
        request, parts, proposals = sequence.request, self._parts, self._grammar_stream.proposals
        matcher = sequence.guide.begin() if sequence.guide is not None else None
        if self.recorder is not None:
            self.recorder.watch(sequence, sequence.slot, matcher)
        sampling = self._sampling(sequence)
        tokens = sequence.text
        if proposals is not None:
            room = request.sampling.max_tokens - sequence.resumed_at
            proposals.open(
                sequence.slot, tokens, room, request.given_ids, sequence.resumed_at, request.lookahead
            )
        if request.gather.context and not sequence.resumed_at:
            sequence.gathered.context = parts.outputs.context_tensors(
                self._runtime, request.gather, len(sequence.prompt)
            )
        processor = sequence.processor
        return PromptInputs(
            sequence.slots,
            np.array(tokens, dtype=np.int64),
            sequence.kv.pages[: parts.state.page_table.shape[1]],
            sampling,
            first=sequence.kv.num_reused,
            window=proposals.first_window(tokens) if proposals is not None else (),
            context=sequence.gathered.context,
            request_id=sequence.id if processor is None else processor.number_for(sequence.id),
            processor=self._capture(sequence),  # last: nothing may raise after the processor is taken
        )

    def _sampling(self, sequence: Sequence) -> SlotSampling:
        limit, is_searched = sequence.request.max_drafts, sequence.search is not None
        if limit is not None and limit >= self._parts.max_drafts:
            limit = None
        return SlotSampling(
            self._runtime,
            sequence.request.sampling,
            sequence.prompt,
            self._parts.model.config.vocab_size,
            answer=() if is_searched else sequence.output.token_ids,
            seed=sequence.seed,
            rules=sequence.request.rules,
            max_drafts=limit,
            is_searched=is_searched,
        )

    def _capture(self, sequence: Sequence) -> int:
        """Take an entry for the sequence's captured processor. Returns its number; 0 without such a processor."""
        processor = sequence.processor
        if processor is None or processor.is_on_host:
            return 0
        processor.captured = self._in_use[sequence] = self._captured.take(processor.processor)
        return processor.captured.number

    def open_prompts(self, prompts: abc.Sequence[PromptInputs]) -> None:
        """Launch the work that writes the prompts' inputs to their slots on the device."""
        runtime, stream, state = self._runtime, self._stream, self._parts.state
        masks, temperatures = self._grammar_stream.token_mask, self._grammar_stream.temperatures
        records = _slot_records(runtime, prompts, state.page_table.shape[1])
        stream.launch(guarded, prompts, open_slots, records, state, masks, temperatures)
        if state.window is not None:
            slots = pinned_copy(runtime, [slot for prompt in prompts for slot in prompt.slots], torch.int64)
            windows = runtime.pinned((slots.shape[0], state.num_beside), torch.int64)
            for place, window in enumerate(prompt.window for prompt in prompts for _ in prompt.slots):
                windows[place] = torch.tensor(window or [0] * state.num_beside)
            stream.launch(guarded, prompts, write_windows, state, slots, windows)
        for prompt in prompts:
            if prompt.sampling.has_tables:
                for slot in prompt.slots:
                    stream.launch(guarded, [prompt], write_tables, state.params, prompt.sampling, slot)

    def release(self, sequence: Sequence) -> None:
        """Release the prompt's inputs and the captured processor of a sequence that released its slots."""
        self._prompts.pop(sequence, None)
        captured = self._in_use.pop(sequence, None)
        if captured is not None:
            self._captured.release(captured)
            if sequence.processor is not None:  # it is None once the sequence has ended
                sequence.processor.captured = None

    # -- reading prompts

    def read(self, batch: InFlightBatch, reading: abc.Sequence[tuple[Sequence, int]]) -> None:
        """Read prompts. `reading` has the number of tokens to read for each sequence. Sequences share forwards, but
        those with a logits processor, a beam search or prompt outputs are read afterwards, each by itself."""
        shares = {sequence: count for sequence, count in reading if sequence in self._prompts}
        shared = {sequence: count for sequence, count in shares.items() if self._shares_forward(sequence)}
        self._read_shares(batch, shared)
        for sequence, count in shares.items():
            if sequence not in shared:
                if sequence.calls_host:
                    self._wait_for_launched(batch)
                self._read_shares(batch, {sequence: count})

    def _shares_forward(self, sequence: Sequence) -> bool:
        return sequence.processor is None and sequence.search is None and not self._prompts[sequence].context

    def _wait_for_launched(self, batch: InFlightBatch) -> None:
        """Wait for the work launched so far, and collect its failures. Next the host waits for one prompt's forward. A
        failure of earlier work would surface there and fail that prompt."""
        try:
            self._stream.synchronize()
            self._runtime.check()
        except Exception as error:
            batch.failures.append((batch.sequences, error))
            self._snapshots.drop_pending()

    def _read_shares(self, batch: InFlightBatch, shares: dict[Sequence, int]) -> None:
        """Read the shares in as few forwards as possible. Add to the batch the sequences that were launched."""
        sequences = {self._prompts[sequence]: sequence for sequence in shares}
        ends = {prompt: prompt.position + shares[sequence] for prompt, sequence in sequences.items()}
        counts = [(prompt, shares[sequence]) for prompt, sequence in sequences.items()]
        failed: set[PromptInputs] = set()
        for parts in pack_parts(counts, self.buffers.max_tokens, self.buffers.max_rows):
            live = {sequences[part.prompt]: part for part in parts if part.prompt not in failed}
            if not live:
                continue
            try:
                self._read_parts(live)  # moves each row's `position` to the part's end
            except Exception as error:
                # If a device function failed for a prompt before, `error` may only be a consequence. The prompt's own
                # error is the cause.
                failed |= {part.prompt for part in live.values()}
                batch.failures += [([s], part.prompt.error or error) for s, part in live.items()]
                continue
            for sequence, part in live.items():
                if part.stop == ends[part.prompt]:
                    batch.read(sequence, part.prompt, part.ends)
                    if part.ends:
                        sequence.move(Stage.GENERATION)

    def _read_parts(self, parts: dict[Sequence, PromptPart]) -> None:
        """Launch one forward with its sampling. Then launch the copies of log-probabilities and of beam candidates
        (offers) for sequences that need them."""
        ended = [sequence for sequence, part in parts.items() if part.ends]
        is_guided = any(sequence.is_guided for sequence in ended)
        guided_logits = GuidedLogits.TARGET if is_guided else GuidedLogits.NONE
        for sequence in ended:
            guide = sequence.guide
            if guide is not None and guide.matcher is not None:
                self._snapshots.change({sequence.slot: guide.matcher})
        step = self.forward(
            [*parts.values()],
            Plan(len(ended), 0, guided_logits, Processors.of(sequence.processor for sequence in ended)),
            lambda: self._snapshots.push([sequence.slot for sequence in ended]),
            self._host_work(parts),
        )
        if self.tap is not None:
            self.tap.read([*parts.values()], step)
        launch = partial(self._stream.launch, guarded, [parts[sequence].prompt for sequence in ended])
        if any(sequence.request.sampling.logprobs is not None for sequence in ended):
            max_top_k = max(sequence.request.sampling.top_k for sequence in ended)
            launch(note_logprobs, self._parts, step, max_top_k)
        for sequence in ended:
            if sequence.search is not None:
                offers = self._rings.offer_buffers(sequence.search.num_offers)
                launch(note_offers, self._parts.state, step, offers)

    def _host_work(self, parts: dict[Sequence, PromptPart]) -> HostWork | None:
        """The call of the host processor for a prompt that is read alone; None if prompts share the forward."""
        if len(parts) > 1:
            return None
        ((sequence, part),) = parts.items()
        prompt, beam = part.prompt, sequence.request.beam
        copies = 1 if beam is None else beam.width_after(0)
        rows = host_rows(sequence, [sequence.output.token_ids], copies)
        return self._graphs.host_work([rows], lambda: prompt.error)

    def forward(
        self,
        prompt_parts: abc.Sequence[PromptPart],
        plan: Plan,
        push_snapshot: Callable[[], object],
        host: HostWork | None = None,
    ) -> StepBuffers:
        """Launch one forward over `prompt_parts`, and sample the first tokens of the prompts that end. Returns the
        buffers, which have a row for each prompt that ends.

        plan: the plan for these rows, without drafts. With logits processors or outputs of the prompt's positions,
            there must be only one part.
        push_snapshot: pushes the snapshot, which attaches matchers.
        host: calls the host's logits processor.
        """
        reading = self.buffers.send(self._runtime, self._stream, prompt_parts)
        stream, grammar_stream, parts, step = self._stream, self._grammar_stream, self._parts, reading.step
        launch = partial(stream.launch, guarded, [part.prompt for part in reading.ended])
        stream.launch(each_guarded, reading, parts.state.dummy, read_parts, parts)
        for part in prompt_parts:
            part.prompt.position = part.stop
        if reading.ended:
            process_logits(stream, plan, parts, step, host, launch)
            if plan.guided_logits or parts.has_proposals:
                # Push right before the task that takes the snapshot. If a call between the two raised, the next
                # iteration would take this snapshot.
                push_snapshot()
            owes = owes_commit(plan, parts)
            if plan.guided_logits:
                grammar_stream.first_mask(stream, step.slots_B, owes_commit=owes)
                grammar_stream.apply_verify(stream, step.logits_BTV, step.slots_B)
            elif parts.has_proposals:
                grammar_stream.follow(stream)
            launch(
                sample_and_verify, parts, step, grammar_stream.temperatures if plan.guided_logits else None
            )
            if plan.guided_logits and not owes:
                grammar_stream.commit_masks(stream, step.slots_B)
            if parts.has_proposals:
                grammar_stream.propose(stream, parts.max_drafts, is_committed=bool(plan.guided_logits))
        if parts.drafter is not None:  # after sampling, since the drafter also reads the sampled token
            stream.launch(each_guarded, reading, parts.state.dummy, draft_parts, parts)
        if reading.ended and parts.has_proposals:
            grammar_stream.wait_proposals(stream)
            launch(take_proposals, parts.state, grammar_stream.proposed, step.slots_B, parts.max_drafts)
        return step


def host_rows(sequence: Sequence, answers: abc.Sequence[abc.Sequence[int]], copies: int = 1) -> HostRows:
    """Make a sequence's rows for the host's logits processors."""
    is_searched = sequence.request.beam is not None
    return HostRows(sequence.processor, sequence.id, sequence.prompt, answers, is_searched, copies)


# -- slots on the device

_HEAD = 4
_PAGES_AT = _HEAD + RECORD_WORDS
"""A slot's record has int64 words: slot, length, request id and processor (the first `_HEAD`), then
`SlotSampling.record`, and from word `_PAGES_AT` on the pages, as int32."""


def _slot_records(runtime: Runtime, prompts: abc.Sequence[PromptInputs], pages_per_slot: int) -> Tensor:
    """Make a record for each of the prompts' n slots. Returns them in pinned memory, int64 [n, ...], for
    `open_slots`."""
    slots = [(slot, prompt) for prompt in prompts for slot in prompt.slots]
    page_words = -(-pages_per_slot // 2)  # two int32 in a word
    records = runtime.pinned((len(slots), _PAGES_AT + page_words), torch.int64)
    numbers = records.numpy()
    pages = records.view(torch.int32).numpy()[:, 2 * _PAGES_AT :]
    for i, (slot, prompt) in enumerate(slots):
        numbers[i, :_HEAD] = slot, prompt.length, prompt.request_id, prompt.processor
        numbers[i, _HEAD:_PAGES_AT] = prompt.sampling.record
        pages[i, : len(prompt.pages)] = prompt.pages
    return records


def open_slots(records: Tensor, state: SlotState, token_mask: Tensor, temperatures: Tensor) -> None:
    """Write records to their slots, and clear the slots' drafts, masks and guides' temperatures. A device function."""
    records = records.to(state.length.device, non_blocking=True)
    slots, length, request_ids, processors = records[:, :_HEAD].t().contiguous()
    pages = records[:, _PAGES_AT:].view(torch.int32)[:, : state.page_table.shape[1]]
    state.page_table.index_copy_(0, slots, pages)
    # Write the length before the prompt is read. If reading fails, the next iteration may already be launched and still
    # decodes the slot. With the previous sequence's length it would write to pages that others may share.
    state.length.index_copy_(0, slots, length)
    state.request_ids.index_copy_(0, slots, request_ids)
    state.processors.index_copy_(0, slots, processors)
    state.params.records.index_copy_(0, slots, records[:, _HEAD:_PAGES_AT])
    state.num_verified.index_fill_(0, slots, 0)
    state.drafts.index_fill_(1, slots, -1)
    token_mask.view(state.length.shape[0], -1).index_fill_(0, slots, 0)
    temperatures.view(state.length.shape[0], -1).index_fill_(0, slots, -1)


# -- one forward on the device


def guarded(prompts: abc.Sequence[PromptInputs], fn: Callable[..., None], *args: Any) -> None:
    """Call `fn(*args)` unless all prompts have failed. If it raises, the exception becomes the error of every prompt
    that has none."""
    if all(prompt.error is not None for prompt in prompts):
        return
    try:
        fn(*args)
    except Exception as error:
        for prompt in prompts:
            prompt.error = prompt.error or error


def each_guarded(reading: Reading, dummy: int, fn: Callable[..., None], parts: DecodeParts) -> None:
    """Call `fn(reading, parts)` for the prompts that have not failed.

    If it raises, call it again for each prompt alone, so that only the prompt at fault fails. The second call writes
    the same values to the same places, so what the first one did before it raised does no harm. The slots of failed
    prompts become `dummy`, so that sampling writes to the padding slot instead."""
    prompts = [part.prompt for part in reading.parts]
    if all(prompt.error is None for prompt in prompts):
        try:
            fn(reading, parts)
            return
        except Exception as error:
            if len(prompts) == 1:
                prompts[0].error = error
    for number, prompt in enumerate(prompts):
        if prompt.error is None:
            guarded([prompt], fn, reading.alone(number), parts)
        if prompt.error is not None:
            reading.leave_out(number, dummy)


def read_parts(reading: Reading, parts: DecodeParts) -> None:
    """Run the target's forward over the parts, and keep the raw logits after prompts that end."""
    state, step, outputs = parts.state, reading.step, parts.outputs
    context, num_ended = reading.context, len(reading.ended)
    first = reading.parts[0]
    with collecting(outputs.reading(step.slots_B, reading.last_R, context, first.start, first.stop)):
        rows = reading.rows(state.page_table)
        hidden_NH = parts.model.forward(
            reading.tokens_N, parts.kv, rows, parts.aux_layers, reading.aux_NF
        ).last
        needs_all = outputs.of_logits(context)
        if not (num_ended or needs_all):
            return
        logits = parts.model.logits(hidden_NH if needs_all else hidden_NH.index_select(0, reading.last_R))
        mark_output(LOGITS, logits)
    if not num_ended:
        return
    if needs_all:
        logits = logits.index_select(0, reading.last_R)
    step.tokens_BT.copy_(reading.tokens_N.index_select(0, reading.last_R)[:, None])
    copy_rows_(step.logits_BTV.flatten(0, 1), logits)
    keep_logits_(step.logits_BTV.flatten(0, 1), step.raw_logits_BTV.flatten(0, 1), step.slots_B, state.params)


def draft_parts(reading: Reading, parts: DecodeParts) -> None:
    """Run the drafter's forward over the parts. It reads each token, the token after it, and its hidden states."""
    assert parts.drafter is not None
    if reading.ended:
        sampled_R = parts.state.last_token.index_select(0, reading.step.slots_B)
        reading.after_N.index_copy_(0, reading.last_R, sampled_R)
    parts.drafter.prefill(
        PromptParts(
            reading.slots_B,
            reading.tokens_N,
            reading.after_N,
            reading.aux_NF,
            reading.rows(parts.state.page_table),
            reading.starts,
            reading.first_B,
            tuple(Span(part.start, part.stop, part.prompt.first) for part in reading.parts),
        )
    )


@dataclass(frozen=True)
class Reading:
    """The input of one forward. All tensors are on the device.

    parts: the chunk of each row.
    slots_B: the slot of each row.
    base_B: the position of each row's first token.
    first_B: the position from which each row's prompt is read; those before come from the cache.
    starts: [B+1]; row b has tokens `starts[b]`..`starts[b+1]-1` of `tokens_N`.
    after_N: the token after each token. After a prompt's last token, this is the sampled token.
    aux_NF: the auxiliary hidden states, which the target's forward writes.
    last_R: the indices in `tokens_N` of the prompts' last tokens.
    step: buffers with a row for each prompt that ends.
    """

    parts: tuple[PromptPart, ...]
    slots_B: Tensor
    base_B: Tensor
    first_B: Tensor
    starts: Tensor
    tokens_N: Tensor
    after_N: Tensor
    aux_NF: Tensor
    last_R: Tensor
    step: StepBuffers

    @property
    def ended(self) -> list[PromptPart]:
        """The parts that are the last chunks of their prompts."""
        return [part for part in self.parts if part.ends]

    @property
    def context(self) -> Mapping[str, Tensor]:
        """The memory for the outputs of all positions, if one prompt is read alone; else empty."""
        return self.parts[0].prompt.context if len(self.parts) == 1 else {}

    def rows(self, page_table: Tensor) -> Rows:
        """The rows in the form that attention takes, with the pages of their slots."""
        width = max(part.count for part in self.parts)
        starts = self.starts if len(self.parts) > 1 else None
        return Rows(page_table.index_select(0, self.slots_B), self.base_B, width, starts=starts)

    def alone(self, number: int) -> Reading:
        """The input of row `number` alone, as views of this one. For device functions."""
        begin = sum(part.count for part in self.parts[:number])  # its first token in `tokens_N`
        part, place = self.parts[number], self._place(number)
        num_ended = int(part.ends)  # of this row: 1 or 0

        def of_row(tensor: Tensor) -> Tensor:
            return tensor.narrow(0, number, 1)

        return replace(
            self,
            parts=(part,),
            slots_B=of_row(self.slots_B),
            base_B=of_row(self.base_B),
            first_B=of_row(self.first_B),
            starts=self.starts.narrow(0, number, 2) - begin,  # as `last_R`, relative to the row's own tokens
            tokens_N=self.tokens_N.narrow(0, begin, part.count),
            after_N=self.after_N.narrow(0, begin, part.count),
            aux_NF=self.aux_NF.narrow(0, begin, part.count),
            last_R=self.last_R.narrow(0, place, num_ended) - begin,
            step=self.step.narrow(place, num_ended),
        )

    def leave_out(self, number: int, dummy: int) -> None:
        """Redirect the sampling of row `number` to slot `dummy`. For device functions."""
        if self.parts[number].ends:
            self.step.slots_B.narrow(0, self._place(number), 1).fill_(dummy)

    def _place(self, number: int) -> int:
        """The number of prompts that end in rows before row `number`."""
        return sum(part.ends for part in self.parts[:number])


_NUMBERS = 7
_SLOTS, _BASE, _FIRST, _STARTS, _END_SLOTS, _END_BASE, _LAST = range(_NUMBERS)
"""Row indices of `PromptBuffers._numbers`, which each forward sends. `_END_SLOTS`, `_END_BASE` and `_LAST` have a
column for each prompt that ends, the others for each row."""


class PromptBuffers:
    """The device memory of a forward, for at most `max_tokens` tokens of `max_rows` rows. All forwards share it."""

    def __init__(self, parts: DecodeParts, max_tokens: int, max_rows: int) -> None:
        config, device = parts.model.config, parts.state.length.device
        self.max_tokens, self.max_rows = max_tokens, min(max_rows, MAX_ROWS)
        # Round up to an even length, so that each row of numbers is aligned for wide loads.
        length = self.max_rows + 2 - self.max_rows % 2
        self._numbers = torch.zeros(_NUMBERS, length, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(2, max_tokens + max_tokens % 2, dtype=torch.int64, device=device)
        width = len(parts.aux_layers) * config.hidden_size
        self._aux = torch.zeros(max_tokens, width, dtype=config.dtype, device=device)
        slots = self._numbers[_END_SLOTS].narrow(0, 0, self.max_rows)
        step = StepBuffers.allocate(slots, 1, parts.model, parts.state, None)
        base = self._numbers[_END_BASE].narrow(0, 0, self.max_rows)
        self._step = replace(step, verified=replace(step.verified, base_B=base))
        self._steps: dict[int, StepBuffers] = {}  # by number of rows

    def send(self, runtime: Runtime, stream: Stream, parts: abc.Sequence[PromptPart]) -> Reading:
        """Launch the copy of a forward's input to the device. Returns the device tensors."""
        num_rows, num_tokens = len(parts), sum(part.count for part in parts)
        num_ended = sum(part.ends for part in parts)
        numbers = runtime.pinned(tuple(self._numbers.shape), torch.int64)
        tokens = runtime.pinned((2, num_tokens), torch.int64)
        _write_parts(parts, numbers, tokens)
        stream.launch(_send, self._numbers, numbers, self._tokens.narrow(1, 0, num_tokens), tokens)

        def row(number: int, count: int) -> Tensor:
            return self._numbers[number].narrow(0, 0, count)

        return Reading(
            tuple(parts),
            slots_B=row(_SLOTS, num_rows),
            base_B=row(_BASE, num_rows),
            first_B=row(_FIRST, num_rows),
            starts=row(_STARTS, num_rows + 1),
            tokens_N=self._tokens[0].narrow(0, 0, num_tokens),
            after_N=self._tokens[1].narrow(0, 0, num_tokens),
            aux_NF=self._aux.narrow(0, 0, num_tokens),
            last_R=row(_LAST, num_ended),
            step=self._step_of(num_ended),
        )

    def _step_of(self, num_rows: int) -> StepBuffers:
        if num_rows not in self._steps:
            self._steps[num_rows] = self._step.narrow(0, num_rows)
        return self._steps[num_rows]


def _write_parts(parts: abc.Sequence[PromptPart], numbers: Tensor, tokens: Tensor) -> None:
    """Write parts to pinned memory: `numbers` [7, ...], and `tokens` [2, N] with each token and the token after it.

    For example, slot 3 reads the tokens 4..6 of its prompt p of 7 tokens, of which 4 were cached. Slot 5 reads the
    tokens 0..2 of a longer prompt q. Only the first prompt ends, so the rows for ends have one column.

        _SLOTS      3 5                 tokens  p4 p5 p6 q0 q1 q2
        _BASE       4 0                 after   p5 p6 0  q1 q2 q3
        _FIRST      4 0
        _STARTS     0 3 6               The 0 is the place of the first sampled token. The device
        _END_SLOTS  3                   writes it there before the drafter reads it (`draft_parts`).
        _END_BASE   6
        _LAST       2
    """
    values, (text, after) = numbers.numpy(), tokens.numpy()
    begin = num_ended = 0
    for b, part in enumerate(parts):
        prompt, end = part.prompt, begin + part.count
        values[_SLOTS, b], values[_BASE, b], values[_FIRST, b] = prompt.slot, part.start, prompt.first
        values[_STARTS, b + 1] = end
        text[begin:end] = prompt.tokens[part.start : part.stop]
        following = prompt.tokens[part.start + 1 : part.stop + 1]  # one fewer if the prompt ends
        after[begin : begin + len(following)] = following
        if part.ends:
            values[_END_SLOTS, num_ended] = prompt.slot
            values[_END_BASE, num_ended] = prompt.length - 1
            values[_LAST, num_ended] = end - 1
            num_ended += 1
        begin = end


def _send(to_numbers: Tensor, numbers: Tensor, to_tokens: Tensor, tokens: Tensor) -> None:
    to_numbers.copy_(numbers, non_blocking=True)
    to_tokens.copy_(tokens, non_blocking=True)
