"""Runs decode iterations that also report the probability of each draft under the drafter and under the target.

The step function is the engine's. It runs eagerly on a stream with two additional launches: one after each pick
records the draft's probability under the drafter, and one before verification records it under the target. Both are
at temperature 1, on the masked logits.

Suffixes: B rows, K drafts, V vocabulary, D draft vocabulary, S slots (plus one for padding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts, StepBuffers
from weft.engine.features.processors import HostRows
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.step import (
    Plan,
    decode_step,
    pick_draft,
    sample_and_verify,
    take_proposals,
)
from weft.runtime.interface import Event, NativeTask, Stream


@dataclass(frozen=True)
class Kept:
    """The rows that verified drafts, on the host: the drafts (target ids, -1 for none), their probabilities under
    the target and the drafter, and the number of accepted drafts [B]."""

    drafts_BK: Tensor
    target_BK: Tensor
    draft_BK: Tensor
    count_B: Tensor


class WatchedSteps(StepGraphs):
    """The eager steps of an engine that has not run yet. Each iteration passes its verified drafts to `watch`, which
    may be replaced."""

    def __init__(self, of: StepGraphs, watch: Callable[[Kept], None] | None = None) -> None:
        super().__init__(of._runtime, of._stream, of._grammar_stream, of._parts, "none", of.max_parts)
        self.watch = watch
        state, max_drafts = self._parts.state, max(1, self._parts.max_drafts)
        shape = (max_drafts, state.length.shape[0])
        picked = torch.zeros(shape, dtype=torch.float64, device=state.length.device)
        self._kept = Probabilities(picked, torch.zeros_like(picked), torch.zeros_like(picked))
        self._runtime.publish()

    def run(self, plan: Plan, rows: Sequence[HostRows] = ()) -> None:
        """Run one iteration, wait for it, and pass its verified drafts to `watch`."""
        buf = self.buffers(plan)
        stream = WatchedStream(self._stream, self._kept)
        decode_step(self._iteration(plan, stream, rows))
        self._stream.synchronize()
        if self.watch is None or not plan.num_drafts:
            return
        slots_B = buf.slots_B.cpu()
        rows_B = (slots_B != self._parts.state.dummy) & (buf.tokens_BT[:, 1:] >= 0).any(1).cpu()
        slots_B, drafts = slots_B[rows_B], slice(plan.num_drafts)
        self.watch(
            Kept(
                buf.tokens_BT[:, 1:].cpu()[rows_B],
                self._kept.target_KS.cpu()[drafts, slots_B].T,
                self._kept.draft_KS.cpu()[drafts, slots_B].T,
                buf.verified.count_B.cpu()[rows_B],
            )
        )


@dataclass(frozen=True)
class Probabilities:
    """Probabilities of drafts by slot, float64 [K, S+1]: under the drafter when it is picked, then under the drafter
    and the target at verification."""

    picked_KS: Tensor
    draft_KS: Tensor
    target_KS: Tensor


class WatchedStream:
    """A stream that launches on `inner`, and also records the probabilities of drafts."""

    def __init__(self, inner: Stream, kept: Probabilities) -> None:
        self.inner = inner
        self._kept = kept

    @property
    def handle(self) -> int:
        return self.inner.handle

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Launch `fn`. Before or after some functions, launch one that records probabilities."""
        if fn is sample_and_verify:
            self.inner.launch(keep_verified, args[0], args[1], self._kept)
        self.inner.launch(fn, *args)
        if fn is pick_draft:
            parts, buf, j, _, proposed = args
            self.inner.launch(keep_draft, parts, proposed, buf, j, self._kept.picked_KS)
        elif fn is take_proposals:
            self.inner.launch(keep_proposals, *args[1:], self._kept.picked_KS)

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        self.inner.hostfunc(task, *args)

    def copy(self, dst: Tensor, src: Tensor) -> None:
        self.inner.copy(dst, src)

    def record(self, event: Event) -> None:
        self.inner.record(event)

    def wait(self, event: Event) -> None:
        self.inner.wait(event)

    def synchronize(self) -> None:
        self.inner.synchronize()


def keep_verified(parts: DecodeParts, buf: StepBuffers, kept: Probabilities) -> None:
    """Record the probability of each draft under the target, given the drafts before it (0 for none), and under the
    drafter."""
    slots_B, drafts_KB = buf.slots_B, buf.tokens_BT[:, 1:].T
    num_drafts = drafts_KB.shape[0]
    probabilities_KBV = buf.logits_BTV[:, :num_drafts].double().softmax(2).transpose(0, 1)
    chosen_KB = probabilities_KBV.gather(2, drafts_KB.clamp(min=0)[..., None])[..., 0]
    kept.target_KS[:num_drafts].index_copy_(1, slots_B, chosen_KB.where(drafts_KB >= 0, 0.0))
    # The host proposes the first drafts of a request right after its prompt, so these were not picked in this slot.
    is_first_B = buf.verified.base_B == parts.state.params.ends_allowed_from.index_select(0, slots_B)
    picked_KB = kept.picked_KS[:num_drafts].index_select(1, slots_B)
    kept.draft_KS[:num_drafts].index_copy_(1, slots_B, torch.where(is_first_B, 1.0, picked_KB))


def keep_draft(
    parts: DecodeParts, proposed: Tensor | None, buf: StepBuffers, j: int, picked_KS: Tensor
) -> None:
    """Record the drafter's probability of draft j when it is picked: 1 for a proposal of the host, 0 for none."""
    assert parts.drafter is not None and buf.draft is not None
    token_B, logits_BD = buf.draft.token_B, buf.draft.logits_BD
    targets_D = torch.arange(logits_BD.shape[1], device=logits_BD.device)
    if parts.drafter.d2t is not None:
        targets_D = targets_D + parts.drafter.d2t
    is_token_BD = targets_D == token_B[:, None]
    chosen_B = logits_BD.double().softmax(1).where(is_token_BD, 0.0).sum(1)
    if proposed is not None:
        is_proposed_B = proposed[j - 1].index_select(0, buf.slots_B) >= 0
        chosen_B = torch.where(is_proposed_B, 1.0, chosen_B)
    picked_KS[j - 1].index_copy_(0, buf.slots_B, chosen_B)


def keep_proposals(proposed: Tensor, slots_B: Tensor, num_drafts: int, picked_KS: Tensor) -> None:
    """Record 1 for each draft that the host proposed."""
    chosen_KB = (proposed[:num_drafts].index_select(1, slots_B) >= 0).double()
    picked_KS[:num_drafts].index_copy_(1, slots_B, chosen_KB)
