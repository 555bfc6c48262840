"""Reading one prompt: eager, in chunks, ending with the first token sampled under the request's guide.

The same pieces as a decode iteration with one row and no drafts; only the model reads many positions at once. Each
chunk's device tensors are its own, held by the launched work, so the host may prepare the next chunk at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.engine.state import DecodeParts, SlotState
from weft.guided.lane import GrammarLane
from weft.models.base import KVIndex
from weft.ops.sampling import sample
from weft.runtime.interface import Runtime, Stream


class PrefillBuffers:
    """What crosses the nodes of a prefill of one request with chunks of at most C tokens."""

    def __init__(self, parts: DecodeParts, chunk: int) -> None:
        config, device = parts.model.config, parts.state.length.device
        width = len(parts.aux_layers) * config.hidden_size
        self.chunk = chunk
        self.slot_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self.logits_1V = torch.zeros(1, config.vocab_size, dtype=config.dtype, device=device)
        self.aux_1CF = torch.zeros(1, chunk, width, dtype=config.dtype, device=device)


class PromptRow:
    """One request's inputs in pinned memory of its own: what `open_slot` writes to the device."""

    def __init__(
        self, runtime: Runtime, slot: int, tokens: list[int], pages: list[int], temperature: float, seed: int
    ) -> None:
        self.slot = slot
        self.length = len(tokens)
        self.tokens = runtime.pinned((len(tokens),), torch.int64)
        self.tokens.copy_(torch.tensor(tokens))
        self.pages = runtime.pinned((len(pages),), torch.int32)
        self.pages.copy_(torch.tensor(pages, dtype=torch.int32))
        self.temperature = temperature
        self.seed = seed


def prefill(
    stream: Stream,
    lane: GrammarLane,
    parts: DecodeParts,
    buf: PrefillBuffers,
    row: PromptRow,
    push_snapshot: Callable[[], None] | None,
) -> None:
    """Issue the whole prefill of `row`.

    A guided request comes with `push_snapshot`, which attaches its matcher; it is called right before the task that
    takes the snapshot is issued, so that whatever raises before leaves none behind.
    """
    guided = push_snapshot is not None
    stream.launch(open_slot, parts.state, lane.token_mask, buf, row)
    for start in range(0, row.length, buf.chunk):
        stop = min(start + buf.chunk, row.length)
        stream.launch(read_chunk, parts, buf, row, start, stop)
        if stop == row.length:
            if push_snapshot is not None:
                push_snapshot()
                lane.first_mask(stream, buf.slot_1)
                lane.apply_verify(stream, buf.logits_1V[:, None], buf.slot_1)
            stream.launch(sample_first, parts.state, buf, row)
            if guided:
                lane.commit_masks(stream, buf.slot_1)
        if parts.drafter is not None:
            stream.launch(draft_chunk, parts, buf, row, start, stop)
    if guided:
        lane.join(stream)


def open_slot(state: SlotState, token_mask: Tensor, buf: PrefillBuffers, row: PromptRow) -> None:
    """Make the slot the request's: its pages and parameters, no drafts, no mask yet."""
    slot = row.slot
    buf.slot_1.fill_(slot)
    state.page_table[slot].zero_()
    state.page_table[slot, : row.pages.shape[0]] = row.pages.to(state.page_table.device, non_blocking=True)
    state.temperature[slot].fill_(row.temperature)
    state.seed[slot].fill_(row.seed)
    state.drafts[:, slot].fill_(-1)
    token_mask.view(state.length.shape[0], -1)[slot].zero_()


def read_chunk(parts: DecodeParts, buf: PrefillBuffers, row: PromptRow, start: int, stop: int) -> None:
    """The target's forward over the prompt's positions start..stop-1, and the logits of the last."""
    device = parts.state.length.device
    tokens_1T = row.tokens[start:stop].to(device, non_blocking=True)[None]
    positions_1T = torch.arange(start, stop, device=device)[None]
    index = KVIndex.at(parts.state.page_table[row.slot][None], positions_1T)
    hidden = parts.model.forward(tokens_1T, parts.kv, index, parts.aux_layers)
    buf.aux_1CF[:, : stop - start] = hidden.aux
    if stop == row.length:
        buf.logits_1V.copy_(parts.model.logits(hidden.last[:, -1]))


def sample_first(state: SlotState, buf: PrefillBuffers, row: PromptRow) -> None:
    """The first token of the answer."""
    slot_1 = buf.slot_1
    position_1 = torch.full_like(slot_1, row.length)
    token_1 = sample(buf.logits_1V, state.temperature[slot_1], state.seed[slot_1], position_1)
    state.verified[slot_1, 0] = 0
    state.verified[slot_1, 1] = token_1
    state.last_token[slot_1] = token_1
    state.length[slot_1] = position_1


def draft_chunk(parts: DecodeParts, buf: PrefillBuffers, row: PromptRow, start: int, stop: int) -> None:
    """The drafter reads the chunk: hidden states of its positions, each with the token after it."""
    assert parts.drafter is not None
    device = parts.state.length.device
    following = row.tokens[start + 1 : stop + 1].to(device, non_blocking=True)
    if stop == row.length:
        following = torch.cat([following, parts.state.last_token[buf.slot_1]])
    page_table_1P = parts.state.page_table[row.slot][None]
    parts.drafter.prefill(following[None], start, buf.aux_1CF[:, : stop - start], page_table_1P)
