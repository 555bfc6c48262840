"""Reading prompts: eager, parts of several in one forward, ending with the first tokens sampled under guides.

First tokens are sampled by the same functions as those of a decode iteration, over the rows whose prompts end, without
drafts; only the forward reads many positions of a row. What is read together is sent in pinned memory of its own, so
the host may prepare the next parts at once. Prompts may be read in turns: what is kept between two parts of one is in
its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from weft.core.request import LOGITS
from weft.engine.device.state import DecodeParts, StepBuffers
from weft.engine.processors.host import HostWork
from weft.engine.step.opening import guarded
from weft.engine.step.reading import PromptPart, Reading, ReadingBuffers
from weft.engine.step.step import Plan, owes_commit, process_logits, sample_and_verify, take_proposals
from weft.guided.grammar_stream import GrammarStream
from weft.models.outputs import collecting, mark_output
from weft.ops.rows import copy_rows_
from weft.ops.slots import keep_logits_
from weft.runtime.interface import Runtime, Stream
from weft.spec.base import PromptParts


@dataclass(frozen=True)
class Prefill:
    """What reads prompts: on `stream`, beside the grammar stream."""

    runtime: Runtime
    stream: Stream
    grammar: GrammarStream
    parts: DecodeParts
    buffers: ReadingBuffers

    def read(
        self,
        together: Sequence[PromptPart],
        plan: Plan,
        push_snapshot: Callable[[], object],
        host: HostWork | None = None,
    ) -> StepBuffers:
        """Issue the reading of parts of prompts in one forward. Where prompts end with it, the first tokens of their
        answers are sampled; the buffers have a row for each of these.

        `plan` is of these rows and no drafts; logits processors and outputs of a prompt's positions are of a prompt
        alone, whose processor `host` calls. `push_snapshot` attaches matchers; it is called right before the task that
        takes the snapshot is issued, so that whatever raises before leaves none.
        """
        reading = self.buffers.begin(self.runtime, self.stream, together)
        stream, parts = self.stream, self.parts
        launch = partial(stream.launch, guarded, [part.row for part in reading.ended])
        stream.launch(each_guarded, reading, parts.state.dummy, read_parts, parts)
        for part in together:
            part.row.position = part.stop
        if reading.ended:
            self._sample(reading, plan, push_snapshot, launch, host)
        if parts.drafter is not None:
            stream.launch(each_guarded, reading, parts.state.dummy, draft_parts, parts)
        if reading.ended and parts.has_proposals:
            self.grammar.wait_proposals(stream)
            launch(take_proposals, parts.state, self.grammar.proposed, reading.step.slots_B, parts.max_drafts)
        return reading.step

    def _sample(
        self,
        reading: Reading,
        plan: Plan,
        push_snapshot: Callable[[], object],
        launch: Callable[..., None],
        host: HostWork | None,
    ) -> None:
        stream, grammar, parts, step = self.stream, self.grammar, self.parts, reading.step
        process_logits(stream, plan, parts, step, host, launch)
        if plan.guides or parts.has_proposals:
            push_snapshot()
        owes = owes_commit(plan, parts)
        if plan.guides:
            grammar.first_mask(stream, step.slots_B, owes_commit=owes)
            grammar.apply_verify(stream, step.logits_BTV, step.slots_B)
        elif parts.has_proposals:
            grammar.follow(stream)
        launch(sample_and_verify, parts, step, grammar.temperatures if plan.guides else None)
        if plan.guides and not owes:
            grammar.commit_masks(stream, step.slots_B)
        if parts.has_proposals:
            grammar.propose(stream, parts.max_drafts, is_committed=bool(plan.guides))


def each_guarded(reading: Reading, dummy: int, fn: Callable[..., None], parts: DecodeParts) -> None:
    """`fn(reading, parts)`, without rows that have failed; where it raises, for each row alone, so that only the row
    fails whose fault it is. What samples then leaves the slots of failed rows alone: theirs becomes `dummy`."""
    rows = [part.row for part in reading.together]
    if all(row.error is None for row in rows):
        try:
            fn(reading, parts)
            return
        except Exception as error:
            if len(rows) == 1:
                rows[0].error = error
    for number, row in enumerate(rows):
        if row.error is None:
            guarded([row], fn, reading.alone(number), parts)
        if row.error is not None:
            reading.leave_out(number, dummy)


def read_parts(reading: Reading, parts: DecodeParts) -> None:
    """The target's forward over the parts, and the raw logits of the last positions of prompts that end."""
    state, step, outputs = parts.state, reading.step, parts.outputs
    context, num_ended = reading.context, len(reading.ended)
    with collecting(outputs.reading(step.slots_B, reading.last_R, context, *reading.span[:2])):
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
    """The drafter reads the parts: their tokens, those after them, and the hidden states of their positions."""
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
            reading.spans,
        )
    )
