"""One decode iteration, top to bottom. This is the file to read.

`decode_step` issues the work of one iteration to two streams: the model's forwards, sampling and drafting on `stream`,
the grammar's work on the grammar stream, ordered by events. `graphs.py` captures this same function; nothing in it
waits, and nothing the host does happens between its lines once it is captured.

Suffixes: B rows, T = 1 + K positions, K drafts, V vocabulary, N = B * T logits rows, P pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor

from weft.core.request import LOGITS
from weft.engine.device.results import note_temperatures
from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.engine.logits_processors import CapturedProcessor, RequestProcessor
from weft.engine.processors.captured import run_captured
from weft.engine.processors.host import HostWork, inner_stream
from weft.engine.step.lookahead import forward_with_windows
from weft.guided.grammar_stream import GrammarStream
from weft.models.outputs import collecting, mark_output
from weft.ops.attention import Rows
from weft.ops.slots import keep_logits_, pick_drafts_, read_slots_, sample_slots_, take_proposals_
from weft.runtime.interface import Stream


class Guides(IntEnum):
    """What the grammar has a say in."""

    NONE = 0
    TARGET = 1
    DRAFTS = 2  # and in the target's tokens


@dataclass(frozen=True)
class Processors:
    """Logits processors of an iteration's rows: those that are `captured`, and whether some are called `on_host`, which
    then must know all that was committed before the iteration is issued."""

    captured: tuple[CapturedProcessor, ...] = ()
    on_host: bool = False

    @classmethod
    def of(cls, processors: Iterable[RequestProcessor | None]) -> Processors:
        """Those of requests: captured ones each once, in one order."""
        own = [processor for processor in processors if processor is not None]
        captured = {processor.captured for processor in own if processor.captured is not None}
        in_order = sorted(captured, key=lambda entry: entry.number)
        return cls(tuple(in_order), any(processor.is_on_host for processor in own))


NO_PROCESSORS = Processors()


@dataclass(frozen=True)
class Plan:
    """What distinguishes graphs: `batch` rows (a bucket), how many drafts are verified, and what is guided. Whatever
    else requests ask is data, by slot. Only logits processors of users add graphs of their own.

    As many drafts are made as are verified: where an iteration makes fewer than the one before, the others are not
    verified, and where it makes more, those that are missing count as none.
    """

    batch: int
    num_drafts: int
    guides: Guides = Guides.NONE
    processors: Processors = NO_PROCESSORS


@dataclass(frozen=True)
class Iteration:
    """One iteration's parts; `host` calls the host's logits processors."""

    plan: Plan
    stream: Stream
    grammar: GrammarStream
    parts: DecodeParts
    buffers: StepBuffers
    host: HostWork | None = None


def decode_step(it: Iteration) -> None:
    """Verify K drafts and sample one more token for every row, then draft K tokens for the next iteration."""
    plan, stream, grammar, parts, buf = it.plan, it.stream, it.grammar, it.parts, it.buffers
    num_drafts, slots_B, has_proposals = plan.num_drafts, buf.slots_B, parts.has_proposals
    temperatures = grammar.temperatures if plan.guides else None
    owes = owes_commit(plan, parts)

    if plan.guides:
        grammar.verify_masks(stream, slots_B, num_drafts, owes_commit=owes)
    elif has_proposals:
        grammar.follow(stream)
    stream.launch(target_forward, plan, parts, buf)
    process_logits(stream, plan, parts, buf, it.host, stream.launch)
    if plan.guides:
        grammar.apply_verify(stream, buf.logits_BTV, slots_B)
    stream.launch(sample_and_verify, parts, buf, temperatures)
    if plan.guides and not owes:
        grammar.commit_masks(stream, slots_B)
    if has_proposals:
        grammar.propose(stream, num_drafts, is_committed=bool(plan.guides))

    if parts.drafter is None:
        if has_proposals and num_drafts:
            grammar.wait_proposals(stream)
            stream.launch(take_proposals, parts.state, grammar.proposed, slots_B, num_drafts)
    elif num_drafts == 0:
        stream.launch(draft_forward, parts, buf, 1)  # its KV stays whole
    else:
        assert buf.draft is not None
        for j in range(1, num_drafts + 1):
            stream.launch(draft_forward, parts, buf, j)
            if plan.guides is Guides.DRAFTS:
                grammar.apply_draft(stream, buf.draft.logits_BD, slots_B, j, parts.drafter.d2t)
            if has_proposals and j == 1:
                grammar.wait_proposals(stream)
            stream.launch(pick_draft, parts, buf, j, temperatures, grammar.proposed)
            if plan.guides is Guides.DRAFTS and j < num_drafts:
                grammar.extend_masks(stream, j, slots_B)

    if plan.guides or has_proposals:
        grammar.join(stream)


def owes_commit(plan: Plan, parts: DecodeParts) -> bool:
    """Whether nothing waits for the grammar's commit of what is sampled: the next snapshot's task makes it."""
    return plan.num_drafts == 0 and not parts.has_proposals


def target_forward(plan: Plan, parts: DecodeParts, buf: StepBuffers) -> None:
    """The target's forward over each row's last token and its drafts, and what is kept of its raw logits."""
    state, verified, slots_B = parts.state, buf.verified, buf.slots_B
    read_slots_(slots_B, state.inputs, verified.base_B, buf.tokens_BT, verified.page_table_BP)
    rows = Rows(verified.page_table_BP, verified.base_B, plan.num_drafts + 1, settled=True)
    with collecting(parts.outputs.decoding(slots_B)):
        if state.window is not None and plan.num_drafts:
            forward_with_windows(parts, buf)
        else:
            hidden = parts.model.forward(buf.tokens_BT, parts.kv, rows, parts.aux_layers, verified.aux_BTF)
            parts.model.logits(hidden.last, buf.logits_BTV)
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
    """Logits processors on the target's raw logits, before everything else acts on them: captured ones, then the
    host's. `launch` gives device work to `stream`."""
    for processor in plan.processors.captured:
        launch(run_captured, processor, parts.state, buf, inner_stream(stream))
    if plan.processors.on_host:
        assert host is not None
        host(stream, buf)


def sample_and_verify(parts: DecodeParts, buf: StepBuffers, temperatures: Tensor | None) -> None:
    """Sample every position, count the drafts that were right, and advance the slots by what is committed."""
    state, verified = parts.state, buf.verified
    logits_NV = buf.logits_BTV.flatten(0, 1)
    if parts.logprobs != "raw":
        note_temperatures(state, buf, temperatures)
    token_N = sample_slots_(
        logits_NV, buf.slots_B, verified.base_B, buf.tokens_BT, state.params, temperatures
    )
    parts.verify(state, buf, token_N.view(buf.tokens_BT.shape))


def take_proposals(state: SlotState, proposed: Tensor, slots_B: Tensor, num_drafts: int) -> None:
    """What the host proposed are the drafts, up to each request's own limit."""
    take_proposals_(slots_B, proposed, state.drafts, num_drafts, state.params)


def draft_forward(parts: DecodeParts, buf: StepBuffers, j: int) -> None:
    """The logits of draft j."""
    assert parts.drafter is not None and buf.draft is not None
    if j == 1:
        parts.drafter.draft_first(buf.verified, buf.draft)
    else:
        parts.drafter.draft_next(buf.verified, buf.draft, j)


def pick_draft(
    parts: DecodeParts, buf: StepBuffers, j: int, temperatures: Tensor | None, proposed: Tensor | None
) -> None:
    """Pick draft j with the noise that the target will have at its position; what the host proposed goes before."""
    assert parts.drafter is not None and buf.draft is not None
    state, verified = parts.state, buf.verified
    pick_drafts_(
        buf.draft.logits_BD, buf.slots_B, verified.base_B, verified.count_B, state.drafts, j, state.params,
        temperatures, proposed, parts.drafter.d2t, out=buf.draft.token_B, drafts_host=state.drafts_host,
    )  # fmt: skip
