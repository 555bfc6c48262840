"""One decode iteration, top to bottom. This is the file to read.

`decode_step` issues the work of one iteration to two streams: the model's forwards, sampling and drafting on `stream`,
the grammar's work on the lane's own stream, ordered by events. `graphs.py` captures this same function; nothing in it
waits, and nothing the host does happens between its lines once it is captured.

Suffixes: B rows, T = 1 + K positions, K drafts, V vocabulary, N = B * T logits rows, P pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from weft.engine.device.logits import limit_drafts, shape_drafts, shape_target, truncation
from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.engine.device.tensors import LOGITS
from weft.engine.processors.captured import CapturedProcessor, run_captured
from weft.engine.processors.host import HostWork, inner_stream
from weft.guided.protocol import Lane
from weft.models.base import KVIndex
from weft.models.outputs import collecting, mark_output
from weft.ops.log_probs import log_probs
from weft.ops.penalties import count_tokens_
from weft.ops.sampling import sample
from weft.ops.suppress_ends import suppress_ends_
from weft.runtime.interface import Stream
from weft.spec.base import repeat_rows, row_positions
from weft.spec.verify import count_accepted, count_proposed, count_simulated


@dataclass(frozen=True)
class Plan:
    """What distinguishes iterations, and their graphs.

    `batch` rows (a bucket) with `num_drafts` drafts verified, and as many made: where an iteration makes fewer than the
    one before, the others are not verified, and where it makes more, those that are missing count as none. Whether some
    row is `guided`, and whether `guided_drafts`, its drafts masked too; whether some row is `shaped` by sampling
    parameters beyond temperature and seed; whether some row wants `logprobs`; whether it `gathers` raw logits or marked
    outputs. Logits processors: whether the host has some to call (`processed`), and those that are `captured`. Whether
    some row is `tempered`: its matcher may want a temperature.
    """

    batch: int
    num_drafts: int
    guided: bool
    guided_drafts: bool
    shaped: bool
    logprobs: bool
    gathers: bool = False
    processed: bool = False
    captured: tuple[CapturedProcessor, ...] = ()
    tempered: bool = False

    @property
    def needs_host(self) -> bool:
        """Whether the host must know all that was committed before this iteration is issued."""
        return self.processed


@dataclass(frozen=True)
class Iteration:
    """One iteration's parts; `host` calls the host's logits processors."""

    plan: Plan
    stream: Stream
    lane: Lane
    parts: DecodeParts
    buffers: StepBuffers
    host: HostWork | None = None


def decode_step(it: Iteration) -> None:
    """Verify K drafts and sample one more token for every row, then draft K tokens for the next iteration."""
    plan, stream, lane, parts, buf = it.plan, it.stream, it.lane, it.parts, it.buffers
    num_drafts, slots_B, has_proposals = plan.num_drafts, buf.slots_B, parts.has_proposals

    if plan.guided:
        lane.verify_masks(stream, slots_B, num_drafts)
    elif has_proposals:
        lane.follow(stream)
    stream.launch(target_forward, plan, parts, buf)
    act_on_logits(stream, plan, parts, buf, it.host, stream.launch)
    if plan.guided:
        lane.apply_verify(stream, buf.logits_BTV, slots_B)
        if plan.tempered:
            lane.set_temperatures(stream, buf.temperature_BT, slots_B)
    stream.launch(sample_and_verify, plan, parts, buf)
    if plan.guided:
        lane.commit_masks(stream, slots_B)
    if has_proposals:
        lane.propose(stream, num_drafts, is_committed=plan.guided)

    if parts.drafter is None:
        if has_proposals and num_drafts:
            lane.wait_proposals(stream)
            stream.launch(take_proposals, plan, parts, lane.proposed, buf)
    elif num_drafts == 0:
        stream.launch(draft_forward, plan, parts, buf, 1)  # its KV stays whole
    else:
        assert buf.draft is not None
        for j in range(1, num_drafts + 1):
            stream.launch(draft_forward, plan, parts, buf, j)
            if plan.guided_drafts:
                lane.apply_draft(stream, buf.draft.logits_BD, slots_B, j, parts.drafter.d2t)
            if has_proposals and j == 1:
                lane.wait_proposals(stream)
            stream.launch(pick_draft, plan, parts, lane.proposed if has_proposals else None, buf, j)
            if plan.guided_drafts and j < num_drafts:
                lane.extend_masks(stream, j, slots_B)

    if plan.guided or has_proposals:
        lane.join(stream, num_drafts)


def target_forward(plan: Plan, parts: DecodeParts, buf: StepBuffers) -> None:
    """The target's forward over each row's last token and its drafts, and what is kept of its raw logits."""
    state, verified, slots_B, num_drafts = parts.state, buf.verified, buf.slots_B, plan.num_drafts
    torch.index_select(state.length, 0, slots_B, out=verified.base_B)
    torch.index_select(state.page_table, 0, slots_B, out=verified.page_table_BP)
    buf.temperature_BT.copy_(state.sampling.temperature.index_select(0, slots_B)[:, None])
    torch.index_select(state.sampling.seed, 0, slots_B, out=buf.seed_B)
    last_B1 = state.last_token.index_select(0, slots_B)[:, None]
    drafts_KB = state.drafts.narrow(0, 0, num_drafts).index_select(1, slots_B)
    torch.cat((last_B1, drafts_KB.T), 1, out=buf.tokens_BT)
    index = KVIndex.at(verified.page_table_BP, row_positions(verified.base_B, num_drafts + 1))
    with collecting(parts.outputs.decoding(slots_B) if plan.gathers else None):
        hidden = parts.model.forward(buf.tokens_BT.clamp(min=0), parts.kv, index, parts.aux_layers)
        buf.logits_BTV.copy_(parts.model.logits(hidden.last))
        mark_output(LOGITS, buf.logits_BTV)
    verified.aux_BTF.copy_(hidden.aux)
    if plan.logprobs:
        buf.raw_logits_BTV.copy_(buf.logits_BTV)


def act_on_logits(
    stream: Stream,
    plan: Plan,
    parts: DecodeParts,
    buf: StepBuffers,
    host: HostWork | None,
    launch: Callable[..., None],
) -> None:
    """What acts on the target's raw logits before the mask, in this order: processors, captured and the host's, then
    penalties, bias and bad words. `launch` gives device work to `stream`."""
    for processor in plan.captured:
        launch(run_captured, processor, parts.state, buf, inner_stream(stream))
    if plan.processed:
        assert host is not None
        host(stream, buf)
    if plan.shaped:
        launch(shape_target, parts.state.sampling, buf)


def sample_and_verify(plan: Plan, parts: DecodeParts, buf: StepBuffers) -> None:
    """Sample every position, count the drafts that were right, and advance the slots by what is committed."""
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    rows, width = buf.tokens_BT.shape
    temperature_N, seed_N = buf.temperature_BT.view(-1), repeat_rows(buf.seed_B, width)
    positions_N = row_positions(verified.base_B + 1, width).view(-1)
    logits_NV = buf.logits_BTV.flatten(0, 1)
    floor_N = None
    if plan.shaped:
        slots_N = repeat_rows(slots_B, width)
        suppress_ends_(logits_NV, slots_N, state.sampling.ends, state.sampling.until, positions_N)
        floor_N = truncation(state.sampling, logits_NV, slots_N, temperature_N)
    tokens_BT = sample(logits_NV, temperature_N, seed_N, positions_N, None, floor_N).view(rows, width)
    drafts_BK = buf.tokens_BT.narrow(1, 1, width - 1)
    if parts.simulated is None:
        count_B = count_accepted(tokens_BT, drafts_BK)
    else:
        count_B, tokens_BT = count_simulated(
            parts.simulated, slots_B, verified.base_B, buf.logits_BTV, tokens_BT, drafts_BK
        )
    verified.tokens_BT.copy_(tokens_BT)
    verified.count_B.copy_(count_B)
    if width > 1:
        state.proposed.index_copy_(0, slots_B, count_proposed(drafts_BK))
    advance(state, buf)
    if plan.shaped:
        count_tokens_(state.sampling.penalties, slots_B, tokens_BT, count_B + 1, verified.base_B + 1)
    if plan.logprobs:
        values, ids = log_probs(
            buf.raw_logits_BTV.flatten(0, 1), tokens_BT.view(-1), state.logprobs.shape[2] - 1
        )
        state.logprobs.narrow(1, 0, width).index_copy_(0, slots_B, values.view(rows, width, -1))
        state.logprob_ids.narrow(1, 0, width).index_copy_(0, slots_B, ids.view(rows, width, -1))


def advance(state: SlotState, buf: StepBuffers) -> None:
    """Move the slots to the end of what was committed; drafts beyond those made next are none."""
    slots_B, verified = buf.slots_B, buf.verified
    width = verified.tokens_BT.shape[1]
    count_B1 = verified.count_B[:, None]
    state.verified.narrow(1, 0, width + 1).index_copy_(
        0, slots_B, torch.cat((count_B1, verified.tokens_BT), 1)
    )
    state.last_token.index_copy_(0, slots_B, verified.tokens_BT.gather(1, count_B1).view(-1))
    length_B = (verified.base_B + verified.count_B).add_(1).mul_(slots_B != state.dummy)
    state.length.index_copy_(0, slots_B, length_B)
    beyond = state.drafts[width - 1 :]
    if beyond.shape[0]:
        beyond.index_fill_(1, slots_B, -1)


def take_proposals(plan: Plan, parts: DecodeParts, proposed: torch.Tensor, buf: StepBuffers) -> None:
    """What the host proposed are the drafts, up to each request's own limit."""
    num_drafts = buf.tokens_BT.shape[1] - 1
    proposed_KB = proposed[:num_drafts].index_select(1, buf.slots_B)
    if plan.shaped:
        proposed_KB = limit_drafts(parts.state.sampling, buf.slots_B, proposed_KB)
    parts.state.drafts[:num_drafts].index_copy_(1, buf.slots_B, proposed_KB)


def draft_forward(plan: Plan, parts: DecodeParts, buf: StepBuffers, j: int) -> None:
    """The logits of draft j, and what changes them before the mask."""
    assert parts.drafter is not None and buf.draft is not None
    if j == 1:
        parts.drafter.draft_first(buf.verified, buf.draft)
    else:
        parts.drafter.draft_next(buf.verified, buf.draft, j)
    if plan.shaped:
        shape_drafts(parts.state, buf, j, parts.drafter.d2t)


def pick_draft(
    plan: Plan, parts: DecodeParts, proposed: torch.Tensor | None, buf: StepBuffers, j: int
) -> None:
    """Pick draft j with the noise that the target will have at its position; -1 where the mask left nothing, and
    beyond the request's own limit. What the host proposed goes before."""
    assert parts.drafter is not None and buf.draft is not None
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    position_B = (verified.base_B + verified.count_B).add_(1 + j)
    logits_BD, floor_B = buf.draft.logits_BD, None
    # Drafts are guesses: the temperature of the first position will do for all.
    temperature_B = buf.temperature_BT[:, 0].contiguous()
    if plan.shaped:
        floor_B = truncation(state.sampling, logits_BD, slots_B, temperature_B)
    token_B = sample(logits_BD, temperature_B, buf.seed_B, position_B, parts.drafter.d2t, floor_B)
    if proposed is not None:
        proposed_B = proposed[j - 1].index_select(0, slots_B)
        token_B = torch.where(proposed_B >= 0, proposed_B, token_B)
    if plan.shaped:
        token_B = limit_drafts(state.sampling, slots_B, token_B[None], j)[0]
    buf.draft.token_B.copy_(token_B)
    state.drafts[j - 1].index_copy_(0, slots_B, token_B)
