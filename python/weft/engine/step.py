"""One decode iteration, top to bottom. This is the file to read.

`decode_step` issues the work of one iteration to two streams: the model's forwards, sampling and drafting on `stream`,
the grammar's work on the lane's own stream, ordered by events. `graphs.py` captures this same function; nothing in it
waits, and nothing the host does happens between its lines once it is captured.

Suffixes: B rows, T = 1 + K positions, K drafts, V vocabulary, P pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.engine.state import DecodeParts, SlotState, StepBuffers
from weft.guided.lane import GrammarLane
from weft.models.base import KVIndex
from weft.ops.sampling import sample
from weft.runtime.interface import Stream
from weft.spec.base import row_positions
from weft.spec.verify import count_accepted


@dataclass(frozen=True)
class Iteration:
    """One iteration's parts. `guided`: some row has a guide. `guided_drafts`: its drafts are masked too."""

    stream: Stream
    lane: GrammarLane
    parts: DecodeParts
    buffers: StepBuffers
    guided: bool
    guided_drafts: bool


def decode_step(it: Iteration) -> None:
    """Verify K drafts and sample one more token for every row, then draft K tokens for the next iteration."""
    stream, lane, parts, buf = it.stream, it.lane, it.parts, it.buffers
    num_drafts = parts.num_drafts

    if it.guided:
        lane.verify_masks(stream, buf.slots_B, num_drafts, it.guided_drafts)
    stream.launch(target_forward, parts, buf)
    if it.guided:
        lane.apply_verify(stream, buf.logits_BTV, buf.slots_B)
    stream.launch(sample_and_verify, parts.state, buf)
    if it.guided:
        lane.commit_masks(stream, buf.slots_B)

    for j in range(1, num_drafts + 1):
        stream.launch(draft_forward, parts, buf, j)
        if it.guided_drafts:
            assert buf.draft is not None and parts.drafter is not None
            lane.apply_draft(stream, buf.draft.logits_BD, buf.slots_B, j, parts.drafter.d2t)
        stream.launch(pick_draft, parts, buf, j)
        if it.guided:
            lane.extend_masks(stream, j, buf.slots_B, fill=it.guided_drafts and j < num_drafts)

    if it.guided:
        lane.join(stream)


def target_forward(parts: DecodeParts, buf: StepBuffers) -> None:
    """The target's forward over each row's last token and its drafts."""
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    num_drafts = buf.tokens_BT.shape[1] - 1
    torch.index_select(state.length, 0, slots_B, out=verified.base_B)
    torch.index_select(state.page_table, 0, slots_B, out=verified.page_table_BP)
    last_B1 = state.last_token.index_select(0, slots_B)[:, None]
    drafts_KB = state.drafts.narrow(0, 0, num_drafts).index_select(1, slots_B)
    torch.cat((last_B1, drafts_KB.T), 1, out=buf.tokens_BT)
    index = KVIndex.at(verified.page_table_BP, row_positions(verified.base_B, num_drafts + 1))
    hidden = parts.model.forward(buf.tokens_BT.clamp(min=0), parts.kv, index, parts.aux_layers)
    buf.logits_BTV.copy_(parts.model.logits(hidden.last))
    verified.aux_BTF.copy_(hidden.aux)


def sample_and_verify(state: SlotState, buf: StepBuffers) -> None:
    """Sample every position, count the drafts that were right, and advance the slots by what is committed."""
    slots_B, verified = buf.slots_B, buf.verified
    rows, width = buf.tokens_BT.shape
    slots_N = slots_B[:, None].expand(rows, width).reshape(-1)
    tokens_BT = sample(
        buf.logits_BTV.flatten(0, 1),
        state.temperature.index_select(0, slots_N),
        state.seed.index_select(0, slots_N),
        row_positions(verified.base_B + 1, width).view(-1),
    ).view(rows, width)
    count_B = count_accepted(tokens_BT, buf.tokens_BT.narrow(1, 1, width - 1))
    verified.tokens_BT.copy_(tokens_BT)
    verified.count_B.copy_(count_B)
    count_B1 = count_B[:, None]
    state.verified.narrow(1, 0, width + 1).index_copy_(0, slots_B, torch.cat((count_B1, tokens_BT), 1))
    state.last_token.index_copy_(0, slots_B, tokens_BT.gather(1, count_B1).view(-1))
    length_B = (verified.base_B + count_B).add_(1).mul_(slots_B != state.dummy)
    state.length.index_copy_(0, slots_B, length_B)


def draft_forward(parts: DecodeParts, buf: StepBuffers, j: int) -> None:
    """The logits of draft j."""
    assert parts.drafter is not None and buf.draft is not None
    if j == 1:
        parts.drafter.draft_first(buf.verified, buf.draft)
    else:
        parts.drafter.draft_next(buf.verified, buf.draft, j)


def pick_draft(parts: DecodeParts, buf: StepBuffers, j: int) -> None:
    """Pick draft j with the noise that the target will have at its position; -1 where the mask left nothing."""
    assert parts.drafter is not None and buf.draft is not None
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    token_B = sample(
        buf.draft.logits_BD,
        state.temperature.index_select(0, slots_B),
        state.seed.index_select(0, slots_B),
        (verified.base_B + verified.count_B).add_(1 + j),
        parts.drafter.d2t,
    )
    buf.draft.token_B.copy_(token_B)
    state.drafts[j - 1].index_copy_(0, slots_B, token_B)
