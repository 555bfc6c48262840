"""Prompts: fills the slots of admitted sequences, and splits their prompts into parts that iterations read.

`Prompts.open` fills the slots. `ModelRunner` makes the parts (`PromptPart`) that a step reads, and `write_inputs`
writes parts to the inputs of an iteration (`step.py`). All state that a prompt has between two of its parts is in its
slot, so parts of different prompts may alternate. A prompt's last token is not read but decoded.

If a request wants outputs of its prompt's positions, an eager forward collects them (`Prompts.read_outputs`). The
iteration then reads the same positions again, so that tokens do not depend on what is collected.

If opening or collecting fails for one prompt, only that prompt fails. `guarded` stores the error in
`PromptInputs.error`, and the host ends the sequence when it reads the batch.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.request import LOGITS
from weft.engine.device.sampling import SlotSampling, write_tables
from weft.engine.device.state import ContextInputs, DecodeParts, SlotState
from weft.engine.device.tensors import ContextOutputs
from weft.engine.features.processors import CapturedProcessor, CapturedProcessors
from weft.engine.runner.in_flight import InFlightBatch, PromptInputs
from weft.engine.runner.states import SlotStates, open_states
from weft.engine.runner.step import write_windows
from weft.engine.sequence import Sequence
from weft.guided.grammar_stream import GrammarStream
from weft.models.outputs import collecting, mark_output
from weft.ops.attention import Rows
from weft.ops.slots import RECORD_WORDS, open_slots_
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream

if TYPE_CHECKING:
    from weft.engine.features.flight_recorder import FlightRecorder

MAX_PARTS = 64
"""The largest number of parts of prompts in an iteration."""


@dataclass(frozen=True)
class PromptPart:
    """A part of a prompt that an iteration reads: its positions start..stop-1. The last token of a prompt is
    decoded, so it is in no part, except in one that only a drafter needs.

    For a model with states, `saves` are pairs of a position from start + 1 to stop and a storage row, which receives
    the state before that position. A packed part has at most one, at its end.
    """

    prompt: PromptInputs
    start: int
    stop: int
    saves: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        """The number of positions."""
        return self.stop - self.start

    @property
    def is_last(self) -> bool:
        """Whether it is the prompt's last part, so that the prompt's last token is decoded in the same step."""
        return self.stop == self.prompt.length - 1

    @property
    def is_lone(self) -> bool:
        """Whether the prompt's last token is its first that is not cached. Such a part has no positions."""
        return self.stop == self.prompt.first == self.prompt.length - 1


def pack_parts(
    parts: Iterable[PromptPart], num_tokens: int, num_parts: int, one_each: bool = False
) -> Iterator[list[PromptPart]]:
    """Split parts into iterations that read at most `num_tokens` tokens of `num_parts` parts each. With `one_each` an
    iteration has at most one part of each prompt."""
    packed: list[PromptPart] = []
    room = num_tokens
    for part in parts:
        start = part.start
        saves = dict(part.saves)
        while start < part.stop:
            # The kernels save the state after the last token of a piece.
            stop = min([part.stop, start + room, *(position for position in saves if position > start)])
            piece = PromptPart(part.prompt, start, stop, ((stop, saves[stop]),) if stop in saves else ())
            packed.append(piece)
            start, room = piece.stop, room - piece.count
            if not room or len(packed) == num_parts or (one_each and start < part.stop):
                yield packed
                packed, room = [], num_tokens
    if packed:
        yield packed


class Prompts:
    """The prompts of admitted sequences. It fills their slots on the engine's `stream`.

    `recorder` learns which sequence gets which slot. An eager forward reads at most `max_tokens` tokens.
    `close_graphs_of` closes the graphs that captured a logits processor.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        grammar_stream: GrammarStream,
        parts: DecodeParts,
        *,
        states: SlotStates | None,
        max_tokens: int,
        close_graphs_of: Callable[[CapturedProcessor], None],
    ) -> None:
        self.recorder: FlightRecorder | None = None
        self._runtime, self._stream = runtime, stream
        self._grammar_stream, self._parts = grammar_stream, parts
        self._states, self._max_tokens = states, max_tokens
        self._captured = CapturedProcessors(close_graphs=close_graphs_of)
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
            self._open([*prompts.values()])
        except Exception as error:
            batch.failures.append(([*prompts], error))
            return
        for sequence, prompt in prompts.items():
            if prompt.error is not None:  # on a GPU it is known at once
                batch.unopened.append((sequence, prompt.error))
            else:
                self._prompts[sequence] = prompt

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
            windowed=sequence.kv.windowed.pages[: parts.state.page_table.shape[1]]
            if sequence.kv.windowed is not None
            else (),
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

    def _open(self, prompts: abc.Sequence[PromptInputs]) -> None:
        """Launch the work that writes the prompts' inputs to their slots on the device."""
        runtime, stream, state = self._runtime, self._stream, self._parts.state
        records = _slot_records(runtime, prompts, state.page_table.shape[1])
        masks, temperatures = self._grammar_stream.token_mask, self._grammar_stream.temperatures
        stream.launch(guarded, prompts, open_slots, records, state, masks, temperatures)
        slots = pinned_copy(runtime, [slot for prompt in prompts for slot in prompt.slots], torch.int64)
        if self._states is not None:
            stream.launch(guarded, prompts, open_states, self._states.states, slots)
        if state.windowed_table is not None:
            for prompt in prompts:
                padding = [0] * (state.windowed_table.shape[1] - len(prompt.windowed))
                pages = pinned_copy(runtime, [*prompt.windowed, *padding], torch.int32)
                stream.launch(guarded, [prompt], write_pages, state.windowed_table, prompt.slot, pages)
        if state.window is not None:
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

    def inputs(self, sequence: Sequence) -> PromptInputs | None:
        """The inputs of a sequence's prompt; None if its slots could not be filled."""
        return self._prompts.get(sequence)

    def read_outputs(self, part: PromptPart) -> None:
        """Launch eager forwards over a part, and over the prompt's last token after the last part. They collect the
        outputs that the request wants."""
        prompt, stop, states = part.prompt, part.stop + part.is_last, self._states
        # The iteration reads these positions again, from the state before them. At position 0 there is none.
        if states is not None and part.start:
            states.keep(prompt.slot)
        for start in range(part.start, stop, self._max_tokens):
            tokens = pinned_copy(
                self._runtime, prompt.tokens[start : min(start + self._max_tokens, stop)], torch.int64
            )
            self._stream.launch(guarded, [prompt], read_outputs, self._parts, prompt, tokens, start)
        if states is not None and part.start:
            states.put_back(prompt.slot)


# -- slots on the device

_HEAD = 5
_PAGES_AT = _HEAD + RECORD_WORDS
"""A slot's record has int64 words: slot, length, last token, request id and processor (the first `_HEAD`), then
`SlotSampling.record`, and from word `_PAGES_AT` on the pages, as int32."""


def _slot_records(runtime: Runtime, prompts: abc.Sequence[PromptInputs], pages_per_slot: int) -> Tensor:
    """Make a record for each of the prompts' n slots. Returns them in pinned memory, int64 [n, ...], for
    `open_slots`."""
    slots = [(slot, prompt) for prompt in prompts for slot in prompt.slots]
    page_words = -(-pages_per_slot // 2)  # two int32 in a word
    records = np.zeros((len(slots), _PAGES_AT + page_words), dtype=np.int64)
    pages = records.view(np.int32)[:, 2 * _PAGES_AT :]
    for i, (slot, prompt) in enumerate(slots):
        last = prompt.length - 1
        records[i, :_HEAD] = slot, last, prompt.tokens[last], prompt.request_id, prompt.processor
        records[i, _HEAD:_PAGES_AT] = prompt.sampling.record
        pages[i, : len(prompt.pages)] = prompt.pages
    return pinned_copy(runtime, records, torch.int64)


def open_slots(records: Tensor, state: SlotState, token_mask: Tensor, temperatures: Tensor) -> None:
    """Write records to their slots, and clear the slots' drafts, masks and guides' temperatures. A device function."""
    # All is written before an iteration reads the slot. With the previous sequence's length or pages it would write to
    # pages that others may share.
    open_slots_(
        records.to(state.length.device, non_blocking=True), state.length, state.last_token, state.request_ids,
        state.processors, state.page_table, state.params.records, state.num_verified, state.drafts, token_mask,
        temperatures,
    )  # fmt: skip


def write_pages(table: Tensor, slot: int, pages: Tensor) -> None:
    """Write a slot's row of a page table. `pages`: int32 [n], pinned. A device function."""
    table[slot, : pages.shape[0]] = pages.to(table.device, non_blocking=True)


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


# -- reading on the device


def write_inputs(
    inputs: ContextInputs[NDArray[np.int64]],
    slots: abc.Sequence[int],
    parts: abc.Sequence[PromptPart],
    width: int,
    dummy: int,
) -> None:
    """Write an iteration's inputs on the host, which are zeros: sampling rows for `slots`, of `width` tokens each, and
    `parts`. Rows without a sequence get slot `dummy`.

    For example, with a batch of 4 rows of 2 tokens, slots 7 and 3 decode. Slot 3 also reads the tokens 4..6 of its
    prompt p of 8 tokens, of which 4 were cached, and slot 5 the tokens 0..2 of a longer prompt q.

        live_N, live_BT, live_B   10 4 2
        slots, base   7 3 . .|3 5 .     0 0 0 0|4 0 0       base of slots 7 and 3: set on the device
        starts        0 2 4 4 4|7 10 10
        tokens_N      . . . . p4 p5 p6 q0 q1 q2             tokens of slots 7 and 3: set on the device
        after_N       . . . . p5 p6 p7 q1 q2 q3
    """
    all_slots, base, starts, num_rows = inputs.slots, inputs.base, inputs.starts, len(slots)
    batch, end = inputs.sizes[0], num_rows * width
    inputs.live_BT[0], inputs.live_B[0] = end, num_rows
    all_slots[:num_rows], all_slots[num_rows:] = slots, dummy
    starts[: num_rows + 1] = np.arange(0, end + 1, width)
    starts[num_rows + 1 :] = end
    for row, part in enumerate(parts, batch):
        prompt, begin, end = part.prompt, end, end + part.count
        all_slots[row], base[row], inputs.first_R[row - batch] = prompt.slot, part.start, prompt.first
        starts[row + 1 :] = end
        inputs.tokens_N[begin:end] = prompt.tokens[part.start : part.stop]
        for _, storage_row in part.saves:
            inputs.saves[row] = storage_row
        # After a prompt's last token no token is known yet.
        known = prompt.tokens[part.start + 1 : part.stop + 1]
        inputs.after_N[begin : begin + len(known)] = known
    inputs.live_N[0] = end


def read_outputs(parts: DecodeParts, prompt: PromptInputs, tokens: Tensor, start: int) -> None:
    """Run the target's forward over a prompt's tokens from position `start` on, and collect their outputs. `tokens`:
    int64 [n], pinned. A device function."""
    state, outputs, count = parts.state, parts.outputs, tokens.shape[0]
    device = state.length.device
    base = torch.full((1,), start, dtype=torch.int64, device=device)
    states = parts.kv.states
    slot = torch.full((1,), prompt.slot, dtype=torch.int64, device=device)
    of_states = states.rows(slot, num_speculative=0) if states is not None else None
    windowed = state.windowed_table[prompt.slot][None] if state.windowed_table is not None else None
    table = state.page_table[prompt.slot][None]
    rows = Rows(table, base, count, states=of_states, windowed_table=windowed)
    with collecting(ContextOutputs(prompt.context, start, start + count)):
        hidden = parts.model.forward(tokens.to(device, non_blocking=True)[None], parts.kv, rows).last
        if outputs.of_logits(prompt.context):
            mark_output(LOGITS, parts.model.logits(hidden))
