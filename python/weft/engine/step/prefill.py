"""Reading prompts: eager, in chunks, ending with the first token sampled under the request's guide.

The first token is sampled by the same function as those of a decode iteration, on one row without drafts; only the
model reads many positions at once. Each chunk's device tensors are its own, held by the launched work, so the host may
prepare the next chunk at once. Prompts may be read in turns: what is kept between two chunks of one is in its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.engine.device.sampling import SamplingRow, write_slot
from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.engine.device.tensors import LOGITS
from weft.engine.processors.host import HostWork
from weft.engine.step.step import Plan, process_logits, sample_and_verify, take_proposals
from weft.guided.lane import GrammarLane
from weft.models.outputs import collecting, mark_output
from weft.ops.attention import Rows
from weft.ops.slots import keep_logits_
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream


class PrefillBuffers:
    """What crosses the nodes of a prefill of one request with chunks of at most C tokens."""

    def __init__(self, parts: DecodeParts, chunk: int) -> None:
        config, device = parts.model.config, parts.state.length.device
        width = len(parts.aux_layers) * config.hidden_size
        self.chunk = chunk
        slot_1 = torch.full_like(parts.state.length[:1], parts.state.dummy)
        self.step = StepBuffers.allocate(slot_1, 1, parts.model, parts.state, None)
        self.aux_1CF = torch.zeros(1, chunk, width, dtype=config.dtype, device=device)


@dataclass(eq=False)
class PromptRow:
    """One request's inputs in pinned memory of its own: what `open_slot` writes to the device, for each of its `slots`.

    `tokens` int64 is the text so far; reading begins at `first`, once the pages `copies` (from, to) are copied, and has
    come to `position`. `pages` int32 are the request's. `error` is what went wrong while it was read: the work after it
    then leaves the slot alone. `context` is memory for outputs of the prompt's positions, by name; `request_id` and
    `processor` are `SlotState`'s.
    """

    slots: Sequence[int]
    tokens: Tensor
    pages: Tensor
    sampling: SamplingRow
    first: int = 0
    copies: tuple[Tensor, Tensor] | None = None
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
        return self.tokens.shape[0]


def pinned_pairs(runtime: Runtime, pairs: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor] | None:
    """Pairs of pages, (from, to), as two tensors int64 [n]; None where there are none."""
    if not pairs:
        return None
    sources, targets = zip(*pairs, strict=True)
    return pinned_copy(runtime, sources, torch.int64), pinned_copy(runtime, targets, torch.int64)


def open_row(stream: Stream, lane: GrammarLane, parts: DecodeParts, row: PromptRow) -> None:
    """Make the row's slots its own."""
    stream.launch(guarded, row, open_slot, parts.state, lane.token_mask, lane.temperatures, row)
    if row.copies is not None:
        stream.launch(guarded, row, copy_pages, parts, *row.copies)


def read_prompt(
    stream: Stream,
    lane: GrammarLane,
    parts: DecodeParts,
    buf: PrefillBuffers,
    row: PromptRow,
    count: int,
    plan: Plan,
    push_snapshot: Callable[[], object],
    host: HostWork | None = None,
) -> None:
    """Issue the reading of `count` more tokens of `row`; with the last of them the first token of the answer is
    sampled. `plan` is of one row and no drafts; `host` calls its logits processor.

    `push_snapshot` attaches the request's matcher; it is called right before the task that takes the snapshot is
    issued, so that whatever raises before leaves none.
    """
    slot_1, has_proposals = buf.step.slots_B, parts.has_proposals
    end = row.position + count
    launch = partial(stream.launch, guarded, row)
    for start in range(row.position, end, buf.chunk):
        stop = min(start + buf.chunk, end)
        launch(read_chunk, parts, buf, row, start, stop)
        if stop == row.length:
            process_logits(stream, plan, parts, buf.step, host, launch)
            if plan.guides or has_proposals:
                push_snapshot()
            if plan.guides:
                lane.first_mask(stream, slot_1)
                lane.apply_verify(stream, buf.step.logits_BTV, slot_1)
            elif has_proposals:
                lane.follow(stream)
            launch(sample_and_verify, parts, buf.step, lane.temperatures if plan.guides else None)
            if plan.guides:
                lane.commit_masks(stream, slot_1)
            if has_proposals:
                lane.propose(stream, parts.max_drafts, is_committed=bool(plan.guides))
        if parts.drafter is not None:
            launch(draft_chunk, parts, buf, row, start, stop)
    row.position = end
    if end < row.length:
        return
    if has_proposals:
        lane.wait_proposals(stream)
        launch(take_proposals, parts.state, lane.proposed, slot_1, parts.max_drafts)
    if plan.guides or has_proposals:
        lane.join(stream)


def guarded(row: PromptRow, fn: Callable[..., None], *args: Any) -> None:
    """`fn(*args)`, unless the row has failed; what it raises is the row's error, and no other request's."""
    if row.error is not None:
        return
    try:
        fn(*args)
    except Exception as error:
        row.error = error


def open_slot(state: SlotState, token_mask: Tensor, temperatures: Tensor, row: PromptRow) -> None:
    """Make the slots the request's: its pages and parameters, no drafts, no mask yet."""
    for slot in row.slots:
        _open_slot(state, token_mask, temperatures, row, slot)


def _open_slot(state: SlotState, token_mask: Tensor, temperatures: Tensor, row: PromptRow, slot: int) -> None:
    state.page_table[slot].zero_()
    state.page_table[slot, : row.pages.shape[0]] = row.pages.to(state.page_table.device, non_blocking=True)
    # Where the prompt can't be read, an iteration that was launched already decodes after it all the same: it must not
    # write where the slot's last request ended, which may be in pages that others share.
    state.length[slot].fill_(row.length)
    state.request_ids[slot].fill_(row.request_id)
    state.num_proposed[slot].fill_(0)
    state.processors[slot].fill_(row.processor)
    write_slot(state.params, row.sampling, slot)
    state.drafts[:, slot].fill_(-1)
    token_mask.view(state.length.shape[0], -1)[slot].zero_()
    temperatures.view(state.length.shape[0], -1)[slot].fill_(-1)


def write_pages(state: SlotState, slot: int, pages: Tensor) -> None:
    """Say which pages a slot has by now: int32 [n], pinned."""
    state.page_table[slot, : pages.shape[0]] = pages.to(state.page_table.device, non_blocking=True)


def copy_pages(parts: DecodeParts, sources: Tensor, targets: Tensor) -> None:
    """Copy the keys and values of whole pages, the drafter's too."""
    device = parts.state.length.device
    sources, targets = sources.to(device, non_blocking=True), targets.to(device, non_blocking=True)
    parts.kv.copy_pages(sources, targets)
    if parts.drafter is not None and parts.drafter.kv is not None:
        parts.drafter.kv.copy_pages(sources, targets)


def read_chunk(parts: DecodeParts, buf: PrefillBuffers, row: PromptRow, start: int, stop: int) -> None:
    """The target's forward over the prompt's positions start..stop-1, and the raw logits of the last."""
    step, device = buf.step, parts.state.length.device
    step.slots_B.fill_(row.slot)
    tokens_1T = row.tokens[start:stop].to(device, non_blocking=True)[None]
    rows = Rows(parts.state.page_table[row.slot][None], torch.full_like(step.slots_B, start), stop - start)
    outputs, is_last = parts.outputs, stop == row.length
    with collecting(outputs.reading(row.slot, row.context, start, stop, row.length)):
        aux_1TF = buf.aux_1CF[:, : stop - start]
        hidden = parts.model.forward(tokens_1T, parts.kv, rows, parts.aux_layers, aux_1TF)
        needs_all = outputs.of_logits(row.context)
        if not (is_last or needs_all):
            return
        logits_1TV = parts.model.logits(hidden.last if needs_all else hidden.last[:, -1:])
        mark_output(LOGITS, logits_1TV)
    if not is_last:
        return
    step.tokens_BT.copy_(tokens_1T[:, -1:])
    step.verified.base_B.fill_(row.length - 1)
    step.logits_BTV.copy_(logits_1TV[:, -1:])
    keep_logits_(
        step.logits_BTV.flatten(0, 1), step.raw_logits_BTV.flatten(0, 1), step.slots_B, parts.state.params
    )


def draft_chunk(parts: DecodeParts, buf: PrefillBuffers, row: PromptRow, start: int, stop: int) -> None:
    """The drafter reads the chunk: its tokens and the one after it, and the hidden states of its positions."""
    assert parts.drafter is not None
    slot_1 = buf.step.slots_B
    tokens = row.tokens[start : stop + 1].to(slot_1.device, non_blocking=True)
    if stop == row.length:
        tokens = torch.cat([tokens, parts.state.last_token[slot_1]])
    page_table_1P = parts.state.page_table[row.slot][None]
    parts.drafter.prefill(
        slot_1, tokens[None], start, buf.aux_1CF[:, : stop - start], page_table_1P, row.first
    )
