"""Making slots requests': what each brings, on the host and for the device, which is told of all in a step at once."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.engine.device.sampling import SlotSampling, write_tables
from weft.engine.device.state import DecodeParts, SlotState
from weft.engine.logits_processors import CapturedProcessor
from weft.engine.processors.captured import CapturedProcessors
from weft.engine.recording import Recorder
from weft.engine.sequence import Sequence
from weft.engine.step.lookahead import write_windows
from weft.guided.grammar_stream import GrammarStream
from weft.ops.slots import RECORD_WORDS
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream

_OWN, _NUMBERS = 4, RECORD_WORDS
"""Numbers of a row: slot, length, request id and processor; then `SlotSampling.record`; then the pages, int32."""


@dataclass(eq=False)
class PromptRow:
    """One request's inputs on the host: what `open_slots` writes to the device, for each of its `slots`.

    `tokens` int64 is the text so far; reading begins at `first`, and has come to `position`. `pages` are the request's,
    `window` what lookahead begins with. `error` is what went wrong while it was read: the work after it then leaves the
    slot alone. `context` is memory for outputs of the prompt's positions, by name; `request_id` and `processor` are
    `SlotState`'s.
    """

    slots: abc.Sequence[int]
    tokens: NDArray[np.int64]
    pages: abc.Sequence[int]
    sampling: SlotSampling
    first: int = 0
    window: abc.Sequence[int] = ()
    context: Mapping[str, Tensor] = field(default_factory=dict)
    request_id: int = 0
    processor: int = 0
    position: int = field(init=False)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.position = self.first

    @property
    def slot(self) -> int:
        """The slot into which the prompt is read."""
        return self.slots[0]

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)


class SlotOpener:
    """Prepares admitted requests. `recorder` is told which request gets a slot; `forget` lets go of the graphs that
    hold a captured processor."""

    def __init__(
        self,
        runtime: Runtime,
        grammar: GrammarStream,
        parts: DecodeParts,
        forget: Callable[[CapturedProcessor], None],
    ) -> None:
        self.recorder: Recorder | None = None
        self._runtime, self._grammar, self._parts = runtime, grammar, parts
        self._captured = CapturedProcessors(forget)
        self._in_use: dict[Sequence, CapturedProcessor] = {}

    def open(self, sequence: Sequence) -> PromptRow:
        """The row that makes the slots the request's. What this raises is the request's own."""
        request, kv = sequence.request, sequence.kv
        matcher = sequence.guide.begin() if sequence.guide is not None else None
        if self.recorder is not None:
            self.recorder.watch(sequence, sequence.slot, matcher)
        sampling = self._sampling(sequence)
        tokens = sequence.text
        if self._grammar.proposals is not None:
            room = sequence.request.sampling.max_tokens - sequence.resumed_at
            self._grammar.proposals.open(
                sequence.slot, tokens, room, request.given_ids, sequence.resumed_at, request.ahead
            )
        if sequence.request.gather.context and not sequence.resumed_at:
            sequence.gathered.context = self._parts.outputs.context_tensors(
                self._runtime, sequence.request.gather, len(sequence.prompt)
            )
        width = self._parts.state.page_table.shape[1]
        return PromptRow(
            sequence.slots,
            np.array(tokens, dtype=np.int64),
            kv.pages[:width],
            sampling,
            kv.num_reused,
            self._grammar.proposals.first_window(tokens) if self._grammar.proposals is not None else (),
            sequence.gathered.context,
            _request_id(sequence),
            self._capture(sequence),
        )

    def release(self, sequence: Sequence) -> None:
        """The request gave its slots back."""
        entry = self._in_use.pop(sequence, None)
        if entry is not None:
            self._captured.give_back(entry)
            if sequence.processor is not None:
                sequence.processor.captured = None

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
        """The number that marks the slots' captured processor; 0 for none."""
        own = sequence.processor
        if own is None or not own.processor.allows_capture:
            return 0
        own.captured = self._in_use[sequence] = self._captured.take(own.processor)
        return own.captured.number


def _request_id(sequence: Sequence) -> int:
    return sequence.id if sequence.processor is None else sequence.processor.number_for(sequence.id)


def slot_records(runtime: Runtime, rows: abc.Sequence[PromptRow], pages_per_slot: int) -> Tensor:
    """Pinned records int64 [n, ...] of the rows' slots, for `open_slots`."""
    slots = [(slot, row) for row in rows for slot in row.slots]
    width = _OWN + _NUMBERS + -(-pages_per_slot // 2)
    records = runtime.pinned((len(slots), width), torch.int64)
    numbers = records.numpy()
    words = records.view(torch.int32).numpy()[:, 2 * (_OWN + _NUMBERS) :]
    for i, (slot, row) in enumerate(slots):
        numbers[i, :_OWN] = slot, row.length, row.request_id, row.processor
        numbers[i, _OWN : _OWN + _NUMBERS] = row.sampling.record
        words[i, : len(row.pages)] = row.pages
    return records


def open_rows(
    runtime: Runtime,
    stream: Stream,
    grammar: GrammarStream,
    parts: DecodeParts,
    rows: abc.Sequence[PromptRow],
) -> None:
    """Make the rows' slots their own."""
    state = parts.state
    records = slot_records(runtime, rows, state.page_table.shape[1])
    stream.launch(guarded, rows, open_slots, records, state, grammar.token_mask, grammar.temperatures)
    if state.window is not None:
        slots = pinned_copy(runtime, [slot for row in rows for slot in row.slots], torch.int64)
        windows = runtime.pinned((slots.shape[0], state.num_beside), torch.int64)
        for place, window in enumerate(row.window for row in rows for _ in row.slots):
            windows[place] = torch.tensor(window or [0] * state.num_beside)
        stream.launch(guarded, rows, write_windows, state, slots, windows)
    for row in rows:
        if row.sampling.has_tables:
            for slot in row.slots:
                stream.launch(guarded, [row], write_tables, state.params, row.sampling, slot)


def open_slots(records: Tensor, state: SlotState, token_mask: Tensor, temperatures: Tensor) -> None:
    """Make slots the requests' of the records: their pages and parameters, no drafts, no mask yet."""
    records = records.to(state.length.device, non_blocking=True)
    slots, length, request_ids, processors = records[:, :_OWN].t().contiguous()
    pages = records[:, _OWN + _NUMBERS :].view(torch.int32)[:, : state.page_table.shape[1]]
    state.page_table.index_copy_(0, slots, pages)
    # Where the prompt can't be read, an iteration that was launched already decodes after it all the same: it must not
    # write where the slot's last request ended, which may be in pages that others share.
    state.length.index_copy_(0, slots, length)
    state.request_ids.index_copy_(0, slots, request_ids)
    state.processors.index_copy_(0, slots, processors)
    state.params.records.index_copy_(0, slots, records[:, _OWN : _OWN + _NUMBERS])
    state.num_proposed.index_fill_(0, slots, 0)
    state.drafts.index_fill_(1, slots, -1)
    token_mask.view(state.length.shape[0], -1).index_fill_(0, slots, 0)
    temperatures.view(state.length.shape[0], -1).index_fill_(0, slots, -1)


def write_pages(state: SlotState, slot: int, pages: Tensor) -> None:
    """Say which pages a slot has by now: int32 [n], pinned."""
    state.page_table[slot, : pages.shape[0]] = pages.to(state.page_table.device, non_blocking=True)


def copy_pages(parts: DecodeParts, sources: Tensor, targets: Tensor) -> None:
    """Copy the keys and values of whole pages, the drafter's too."""
    device = parts.state.length.device
    sources, targets = sources.to(device, non_blocking=True), targets.to(device, non_blocking=True)
    for cache in parts.caches:
        cache.copy_pages(sources, targets)


def pinned_pairs(runtime: Runtime, pairs: abc.Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    """Pairs of pages, (from, to), as two tensors int64 [n]; None where there are none."""
    if not pairs:
        return None
    sources, targets = zip(*pairs, strict=True)
    return pinned_copy(runtime, sources, torch.int64), pinned_copy(runtime, targets, torch.int64)


def guarded(rows: abc.Sequence[PromptRow], fn: Callable[..., None], *args: Any) -> None:
    """`fn(*args)`, unless all rows have failed; what it raises is the rows' error, and no other request's."""
    if all(row.error is not None for row in rows):
        return
    try:
        fn(*args)
    except Exception as error:
        for row in rows:
            row.error = row.error or error
