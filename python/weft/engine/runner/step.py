"""One iteration, top to bottom.

An iteration has sampling rows, one for each sequence that decodes. It may also read parts of prompts. A prompt's last
token is not read but decoded: a prompt that ends in an iteration has a sampling row without drafts in it. So first
tokens are sampled like all others.

`decode_step` issues one iteration to two streams. The model's forwards, sampling and drafting go to `stream`. The
grammar's work goes to the grammar stream. Events order the two. The function never waits for the device, except for
logits processors on the host. `graphs.py` captures this same function; a replay runs none of its Python.

Suffixes: B sampling rows, K drafts, T = 1 + K positions, V vocabulary, N = B * T rows of logits, H hidden size, W
tokens of a lookahead window, X = T + W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from weft.core.request import LOGITS
from weft.engine.device.results import note_temperatures
from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.engine.features.processors import (
    CapturedProcessor,
    HostWork,
    RequestProcessor,
    inner_stream,
    run_captured,
)
from weft.guided.grammar_stream import GrammarStream
from weft.models.outputs import collecting, mark_output
from weft.ops.attention import Rows
from weft.ops.slots import keep_logits_, pick_drafts_, read_slots_, sample_slots_, take_proposals_
from weft.runtime.interface import Stream


class GuidedLogits(IntEnum):
    """The logits that the grammar masks."""

    NONE = 0
    TARGET = 1
    DRAFTS = 2  # the drafter's logits, and the target's


@dataclass(frozen=True)
class Processors:
    """The logits processors of an iteration: the captured ones, and whether the host calls others (`on_host`). With
    host processors, the host must read all earlier iterations before it issues this one."""

    captured: tuple[CapturedProcessor, ...] = ()
    on_host: bool = False

    @classmethod
    def of(cls, processors: Iterable[RequestProcessor | None]) -> Processors:
        """The processors of an iteration's sequences. Each captured one appears once, in the order of numbers, so that
        equal sets of processors give equal plans."""
        given = [processor for processor in processors if processor is not None]
        captured = {processor.captured for processor in given if processor.captured is not None}
        in_order = sorted(captured, key=lambda entry: entry.number)
        return cls(tuple(in_order), any(processor.is_on_host for processor in given))


NO_PROCESSORS = Processors()


@dataclass(frozen=True)
class Plan:
    """The kind of an iteration. Each plan is captured once. All other settings of requests are data in their slots,
    and need no other capture.

    batch: the number of rows, rounded up (`bucket`). Rows without a sequence are padding.
    num_drafts: the number of drafts that the iteration verifies, and that it makes for the next one. If the previous
        iteration made more, the rest are not verified. If it made fewer, the missing ones are -1.
    num_context: the largest number of prompt tokens that the iteration reads. 0: it reads no prompts.
    """

    batch: int
    num_drafts: int
    guided_logits: GuidedLogits = GuidedLogits.NONE
    processors: Processors = NO_PROCESSORS
    num_context: int = 0


@dataclass(frozen=True)
class Iteration:
    """The arguments of `decode_step`. `host` calls the host's logits processors."""

    plan: Plan
    stream: Stream
    grammar_stream: GrammarStream
    parts: DecodeParts
    buffers: StepBuffers
    host: HostWork | None = None


def decode_step(it: Iteration) -> None:
    """In each sampling row, verify K drafts and sample one more token, then make K drafts for the next iteration. Also
    read the parts of prompts."""
    plan, stream, grammar_stream, parts, buf = it.plan, it.stream, it.grammar_stream, it.parts, it.buffers
    num_drafts, slots_B, has_proposals = plan.num_drafts, buf.slots_B, parts.has_proposals
    temperatures = grammar_stream.temperatures if plan.guided_logits else None
    owes = owes_commit(plan, parts)

    # Verify with the target. Issue the grammar's masks first, so that they fill while the forward runs.
    if plan.guided_logits:
        grammar_stream.verify_masks(stream, slots_B, num_drafts, owes_commit=owes)
    elif has_proposals:
        grammar_stream.follow(stream)
    stream.launch(target_forward, plan, parts, buf)
    # Before the masks, so that processors get raw logits.
    process_logits(stream, plan, parts, buf, it.host, stream.launch)
    if plan.guided_logits:
        grammar_stream.apply_verify(stream, buf.logits_BTV, slots_B)  # waits for the masks
    stream.launch(sample_and_verify, parts, buf, temperatures)

    # While the drafter runs, the grammar accepts the verified tokens, and the host proposes drafts after them.
    if plan.guided_logits and not owes:
        grammar_stream.commit_masks(stream, slots_B)
    if has_proposals:
        grammar_stream.propose(stream, num_drafts, is_committed=bool(plan.guided_logits))

    # Make drafts for the next iteration: the host's proposals, and the drafter's drafts in the places without one.
    if parts.drafter is None:
        if has_proposals and num_drafts:
            grammar_stream.wait_proposals(stream)
            stream.launch(take_proposals, parts.state, grammar_stream.proposed, slots_B, num_drafts)
    elif num_drafts == 0:
        stream.launch(draft_forward, parts, buf, 1)  # only for its keys and values: later drafts read them
    else:
        assert buf.draft is not None
        # `pick_draft` reads the grammar's temperatures only if the stream waits for the commit before it, by
        # `apply_draft` or `wait_proposals`. Otherwise the commit may be replacing them at that moment, and the drafts
        # would depend on which is faster; drafts then use the requests' temperatures.
        waits_for_commit = plan.guided_logits is GuidedLogits.DRAFTS or has_proposals
        draft_temperatures = temperatures if waits_for_commit else None
        for j in range(1, num_drafts + 1):
            stream.launch(draft_forward, parts, buf, j)
            if plan.guided_logits is GuidedLogits.DRAFTS:
                grammar_stream.apply_draft(stream, buf.draft.logits_BD, slots_B, j, parts.drafter.d2t)
            if has_proposals and j == 1:  # as late as possible: `pick_draft` reads the proposals first
                grammar_stream.wait_proposals(stream)
            stream.launch(pick_draft, parts, buf, j, draft_temperatures, grammar_stream.proposed)
            if plan.guided_logits is GuidedLogits.DRAFTS and j < num_drafts:  # no draft follows the last one
                grammar_stream.extend_masks(stream, j, slots_B)

    if plan.guided_logits:
        if owes:
            grammar_stream.commit_ahead(stream)
        elif parts.drafter is not None:
            grammar_stream.extend_ahead(stream, num_drafts)
    if plan.guided_logits or has_proposals:
        grammar_stream.join(stream)  # a capture must end with its streams joined


def owes_commit(plan: Plan, parts: DecodeParts) -> bool:
    """Whether the matchers accept this iteration's tokens only in the next iteration. That is so if the iteration makes
    no drafts and no proposals: then it does not need the matchers' state after the sampled token."""
    return plan.num_drafts == 0 and not parts.has_proposals


def target_forward(plan: Plan, parts: DecodeParts, buf: StepBuffers) -> None:
    """Run the target's forward over each row's last token and drafts, and over the parts of prompts. Keep raw logits
    for log-probabilities.

    A missing draft, -1, is computed too, as a clamped id. The next iteration overwrites the keys and values of all
    drafts that were not accepted."""
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    rows = verified.rows
    if state.windowed_table is not None and rows.windowed_table is not None:
        # Before `read_slots_`, after which attention may begin (`Rows.settled`).
        torch.index_select(state.windowed_table, 0, buf.slots, out=rows.windowed_table)
    read_slots_(buf.slots, state.inputs, rows.base, buf.tokens_BT, rows.page_table)
    with collecting(parts.outputs.decoding(slots_B, plan.num_drafts + 1)):
        if state.window is not None and plan.num_drafts and not plan.num_context:
            forward_with_windows(parts, buf)
        else:
            hidden = parts.model.forward(verified.tokens, parts.kv, rows, parts.aux_layers, verified.aux).last
            live_BT = buf.inputs.live_BT if buf.inputs is not None else None
            parts.model.logits(verified.of_sampling(hidden), buf.logits_BTV, live=live_BT)
        mark_output(LOGITS, buf.logits_BTV)
    keep_logits_(buf.logits_BTV.flatten(0, 1), buf.raw_logits_BTV.flatten(0, 1), slots_B, state.params)


def process_logits(
    stream: Stream,
    plan: Plan,
    parts: DecodeParts,
    buf: StepBuffers,
    host: HostWork | None,
    launch: Callable[..., None],
) -> None:
    """Apply users' logits processors to the target's raw logits: captured ones, then the host's. `launch` issues device
    work to `stream`."""
    for processor in plan.processors.captured:
        launch(run_captured, processor, parts.state, buf, inner_stream(stream))
    if plan.processors.on_host:
        assert host is not None
        host(stream, buf)


def sample_and_verify(parts: DecodeParts, buf: StepBuffers, temperatures: Tensor | None) -> None:
    """Sample every position, accept the leading drafts that equal the samples, and advance the slots by the committed
    tokens. `temperatures` are set by guides."""
    state, verified = parts.state, buf.verified
    logits_NV = buf.logits_BTV.flatten(0, 1)
    if parts.logprobs != "raw":
        note_temperatures(state, buf, temperatures)
    token_N = sample_slots_(
        logits_NV, buf.slots_B, verified.base_B, buf.tokens_BT, state.params, temperatures
    )
    parts.verify(state, buf, token_N.view(buf.tokens_BT.shape))
    if parts.kv.states is not None:
        parts.kv.states.owed.index_copy_(0, buf.slots_B, verified.count_B)


def take_proposals(state: SlotState, proposed: Tensor, slots_B: Tensor, num_drafts: int) -> None:
    """Copy the host's proposals to the drafts, up to each request's own limit."""
    take_proposals_(slots_B, proposed, state.drafts, num_drafts, state.params)


def draft_forward(parts: DecodeParts, buf: StepBuffers, j: int) -> None:
    """Run the drafter's forward for draft j, up to its logits."""
    assert parts.drafter is not None and buf.draft is not None
    if j == 1:
        parts.drafter.draft_first(buf.verified, buf.draft)
    else:
        parts.drafter.draft_next(buf.verified, buf.draft, j)


def pick_draft(
    parts: DecodeParts, buf: StepBuffers, j: int, temperatures: Tensor | None, proposed: Tensor | None
) -> None:
    """Pick draft j: the host's proposal if there is one, else a sample. The sample uses the noise that the target will
    use at that position, so that the target often samples the same token."""
    assert parts.drafter is not None and buf.draft is not None
    state, verified = parts.state, buf.verified
    pick_drafts_(
        buf.draft.logits_BD, buf.slots_B, verified.base_B, verified.count_B, state.drafts, j, state.params,
        temperatures, proposed, parts.drafter.d2t, out=buf.draft.token_B, drafts_host=state.drafts_host,
    )  # fmt: skip


# -- lookahead decoding (`spec/proposers.py`): a window of tokens after each text


def forward_with_windows(parts: DecodeParts, buf: StepBuffers) -> None:
    """Compute the logits of each row's last token and drafts, and the next lookahead window of each slot.

    A row is one causal sequence: last token, drafts, window. So the tokens before the window do not attend to it. The
    window's keys and values are scratch: later iterations overwrite them. The next window consists of the target's
    likeliest token after each token of this window.
    """
    state, verified = parts.state, buf.verified
    assert state.window is not None and buf.lines is not None
    (batch, width), num_beside = buf.tokens_BT.shape, state.num_beside
    # The window begins right after a row's last draft. Rows with fewer drafts have shorter lines, whose last places are
    # computed and ignored.
    num_B = (buf.tokens_BT >= 0).sum(1)
    window_BW = state.window.index_select(0, buf.slots_B)[:, :num_beside]
    line_BX = torch.cat((buf.tokens_BT, window_BW), 1).gather(1, buf.lines.read.index_select(0, num_B))
    place_BW = buf.lines.places.index_select(0, num_B)
    states = verified.rows.states
    rows = Rows(verified.page_table_BP, verified.base_B, width + num_beside, states=states)
    hidden_BXH = parts.model.forward(line_BX, parts.kv, rows).last
    size = hidden_BXH.shape[2]
    windows_BWH = hidden_BXH.gather(1, place_BW[:, :, None].expand(batch, num_beside, size))
    # One matmul with the LM head for both: reading its weights costs more than the windows' rows.
    hidden_NH = torch.cat((hidden_BXH[:, :width].reshape(-1, size), windows_BWH.reshape(-1, size)))
    parts.model.logits(hidden_NH, buf.logits_NV)
    next_BW = buf.logits_NV[batch * width :].argmax(1).view(batch, num_beside)
    state.window.index_copy_(0, buf.slots_B, torch.cat((next_BW, verified.base_B[:, None]), 1))


def write_windows(state: SlotState, slots: Tensor, windows: Tensor) -> None:
    """Set the first windows of slots. slots: int64 [n]; windows: int64 [n, W]; both pinned. A device function."""
    assert state.window is not None
    device = state.window.device
    slots, windows = slots.to(device, non_blocking=True), windows.to(device, non_blocking=True)
    state.window[:, : windows.shape[1]].index_copy_(0, slots, windows)
