"""The grammar stream: matchers advance on a stream of their own while the model computes.

An iteration makes these calls in order, with its own work (in parentheses) on the engine's `stream`:

- `verify_masks`, (target forward), `apply_verify`, (sample and verify), `commit_masks`;
- `propose` if the host drafts;
- for each draft j: (draft forward), `apply_draft`, (pick), `extend_masks`;
- `join`.

Each call only enqueues work, so all of it can be captured. The host calls `push` before each launch.

An iteration may leave out `commit_masks` if nothing in it needs the masks after its last token. Then it owes its
commit: the next iteration's `fetch` does it during the forward, or the host with `commit_owed`, whichever comes first.

Three events order the streams. After `token_event`, the grammar may read the tokens that the device wrote. After
`mask_event`, the device may read the masks, and overwrite the tokens that the grammar has read. After
`proposal_event`, the device may read the drafts that the host proposed.

Kernels write verified tokens and picked drafts directly to pinned host memory, where the grammar reads them. The device
reads the host's proposals from pinned memory too. Copies are on the grammar stream, so that they don't delay the model.

Everything is by slot, so the order of rows in the batch does not matter. Mask row slot*(K+1) + j is for the token after
the slot's committed text and j drafts.

S slots, K drafts, T = 1 + K positions, B rows, V vocabulary, W = ceil(V / 32).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from weft.guided.proposals import Proposals
from weft.guided.state import GuidedShape, GuidedState
from weft.ops.slot_masks import SlotMasks, apply_slot_masks_, copy_slot_masks
from weft.runtime.interface import NativeTask, Runtime, Stream


def default_workers() -> int:
    """The default number of threads that help with a long phase of matchers: a quarter of the cores, from 1 to 8. On a
    single core it is 0."""
    cores = os.cpu_count() or 1
    return min(max(cores // 4, 1), cores - 1, 8)


class GrammarStream:
    """Fills masks for the slots of a shape, and applies them on a runtime's device.

    With `polls`, a polling thread runs the tasks that the model's stream waits for (`commit`, `extend`, proposals) in
    captured graphs, if the device supports it. The attribute `polls` says whether it does. `make_proposals` makes the
    host's drafting over this object's state. `state` is the grammar state on the host; its pinned tensors are named
    `*_host`.

    The engine writes these device tensors, and writes verified tokens and picked drafts to the state's `verified_host`
    and `drafts_host` too, or has them copied:

    drafts: int64 [K, S+1], ids of the target's vocabulary (-1: none).
    verified: int64 [S+1, K+2], the number of accepted drafts, then the tokens of positions 0..K.
    num_verified: int64 [S+1], the number of drafts that were verified.
    results: one tensor over the memory of `verified` and `num_verified`.
    window: int64 [S+1, window+1], copied to `Proposals.window_host` before each `propose`; None without lookahead.

    This object writes these device tensors, with one row for each position of each slot:

    masks: int32 [(S+1)*(K+1), W].
    token_mask: int32 [(S+1)*(K+1)].
    temperatures: float32 [(S+1)*(K+1)], the matcher's; negative for the request's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        shape: GuidedShape,
        *,
        make_proposals: Callable[[GuidedState], Proposals] | None = None,
        mask_time_limit_s: float = 0.0,
        polls: bool = False,
    ) -> None:
        self.polls = polls and runtime.prepare_polling() is None
        self.state = GuidedState(
            shape, pinned=runtime.pinned, workers=default_workers(), mask_time_limit_s=mask_time_limit_s
        )
        self.push = self.state.push
        # High priority: its kernels are tiny, and the model's stream waits for them.
        self.stream = runtime.stream(high_priority=True)
        self.token_event = runtime.event()
        self.mask_event = runtime.event()
        self.proposal_event = runtime.event()
        self.num_positions = shape.max_drafts + 1
        # On a GPU the host's threads don't compute the model, and a host function would delay the iteration's end.
        self._is_host = runtime.device.type == "cpu"
        self.drafts = torch.full_like(self.state.drafts_host, -1, device=runtime.device)
        size = self.state.verified_host.numel()  # one tensor, so that one copy brings both to the host
        self.results = torch.zeros(size + shape.num_slots + 1, dtype=torch.int64, device=runtime.device)
        self.verified = self.results[:size].view_as(self.state.verified_host)
        self.num_verified = self.results[size:]
        self.masks = torch.zeros_like(self.state.masks_host, device=runtime.device)
        self.token_mask = torch.zeros_like(self.state.token_mask_host, device=runtime.device)
        self.temperatures = torch.full_like(self.state.temperatures_host, -1, device=runtime.device)
        state, positions = self.state, self.num_positions
        self._masks = SlotMasks(self.masks, self.token_mask, self.temperatures, positions)
        self._masks_host = SlotMasks(
            state.masks_host, state.token_mask_host, state.temperatures_host, positions
        )
        self.proposals = make_proposals(self.state) if make_proposals is not None else None
        host = self.proposals.window_host if self.proposals is not None else None
        self.window = None if host is None else torch.zeros_like(host, device=runtime.device)
        runtime.publish()

    def follow(self, stream: Stream) -> None:
        """Take the snapshot of an iteration that has no guided rows but makes proposals."""
        self._enter(stream)
        self.stream.hostfunc(self.state.task("fetch"))

    @property
    def proposed(self) -> Tensor | None:
        """The host's proposals, int64 [K, S+1] in pinned memory; None if the host does not draft."""
        return self.proposals.proposed_host if self.proposals is not None else None

    def all_masks(self, stream: Stream, slots_B: Tensor) -> None:
        """Take the snapshot and all K drafts, and send all masks. It works for any number of drafts in the rows."""
        self.verify_masks(stream, slots_B, self.num_positions - 1)

    def verify_masks(
        self, stream: Stream, slots_B: Tensor, num_drafts: int, *, owes_commit: bool = False
    ) -> None:
        """During the target's forward, do an owed commit, take the snapshot, advance the matchers over the drafts, and
        send the masks. `owes_commit`: no `commit_masks` follows in this iteration.

        Drafts that the matchers accepted while they were made (`extend_masks`) cost nothing here.
        """
        self._begin(stream, owes_commit)
        if num_drafts:
            self.stream.hostfunc(self.state.task("extend_through", num_drafts))
        self._copy_masks(slots_B, 0, num_drafts + 1)

    def apply_verify(
        self, stream: Stream, logits_BTV: Tensor, slots_B: Tensor, d2t: Tensor | None = None
    ) -> None:
        """Mask the target's logits [B, T, V] in place, T <= K+1. Position t gets the mask after t drafts.

        `d2t` int64 [V] as in `apply_draft`, for a target with a pruned vocabulary.
        """
        stream.wait(self.mask_event)
        stream.launch(_apply_masks, logits_BTV.flatten(0, 1), self._masks, slots_B, 0, d2t)

    def commit_masks(self, stream: Stream, slots_B: Tensor, *, copies: bool = False) -> None:
        """Commit the verified tokens, and send the masks after the committed text. With `copies`, the device wrote only
        `verified`, which is copied to `verified_host` first."""
        self._enter(stream)
        if copies:
            self.stream.copy(self.state.verified_host, self.verified)
        self._run(self.state.task("commit"))
        self._copy_masks(slots_B, 0, 1)

    def propose(self, stream: Stream, num_drafts: int, is_committed: bool) -> None:
        """Let the host propose drafts for the snapshot's slots. After `wait_proposals`, `proposed` has them.

        `is_committed`: `commit_masks` was called earlier in this iteration, so the streams are already ordered.
        """
        assert self.proposals is not None
        if not is_committed:
            self._enter(stream)
        if self.window is not None:
            assert self.proposals.window_host is not None
            self.stream.copy(self.proposals.window_host, self.window)
        self._run(self.proposals.task(num_drafts))
        self.stream.record(self.proposal_event)

    def wait_proposals(self, stream: Stream) -> None:
        """Make `stream` wait for the proposals."""
        stream.wait(self.proposal_event)

    def extend_masks(self, stream: Stream, j: int, slots_B: Tensor, *, copies: bool = False) -> None:
        """Advance the matchers over draft j, and send the masks after it. With `copies`, the device wrote the draft
        only to `drafts`, from which it is copied to `drafts_host` first."""
        self._enter(stream)
        if copies:
            self.stream.copy(self.state.drafts_host[j - 1], self.drafts[j - 1])
        self._run(self.state.task("extend", j))
        self._copy_masks(slots_B, j, j + 1)

    def apply_draft(
        self, stream: Stream, logits_BD: Tensor, slots_B: Tensor, j: int, d2t: Tensor | None = None
    ) -> None:
        """Mask the drafter's logits [B, Vd] for draft j in place, with the mask after j-1 drafts.

        `d2t` int64 [Vd] has the offsets of a pruned vocabulary: column c stands for token c + d2t[c].
        """
        stream.wait(self.mask_event)
        stream.launch(_apply_masks, logits_BD, self._masks, slots_B, j - 1, d2t)

    def commit_ahead(self, stream: Stream) -> None:
        """At the end of an iteration that owes its commit: let the CPU's threads begin it while the host reads."""
        if self._is_host:
            self._enter(stream)
            self.stream.hostfunc(self.state.task("commit_ahead"))

    def extend_ahead(self, stream: Stream, num_drafts: int) -> None:
        """At the end of an iteration that made drafts: let the CPU's threads advance the matchers over them while the
        host works. The next `verify_masks` does the rest."""
        if self._is_host:
            self._enter(stream)
            self.stream.hostfunc(self.state.task("extend_ahead", num_drafts))

    def join(self, stream: Stream) -> None:
        """Make `stream` wait for the grammar stream, since a capture must end with its streams joined."""
        self.stream.record(self.mask_event)
        stream.wait(self.mask_event)

    def synchronize(self) -> None:
        """Wait for the work on the grammar stream."""
        self.stream.synchronize()

    def close(self) -> None:
        """Wait for the work on the grammar stream. The matchers are released with the state."""
        self.synchronize()
        self.state.end_ahead()

    def _begin(self, stream: Stream, owes_commit: bool) -> None:
        self._enter(stream)
        # It ends an `extend_ahead`, which reads `drafts_host`.
        self.stream.hostfunc(self.state.task("fetch", owes_commit))
        if self.num_positions > 1:
            # Proposals, cleared drafts and new slots are written on the device only.
            self.stream.copy(self.state.drafts_host, self.drafts)

    def _run(self, task: NativeTask) -> None:
        """Enqueue a task that the model's stream waits for."""
        self.stream.hostfunc(replace(task, polled=self.polls))

    def _enter(self, stream: Stream) -> None:
        stream.record(self.token_event)
        self.stream.wait(self.token_event)

    def _copy_masks(self, slots_B: Tensor, first: int, stop: int) -> None:
        """Send the masks of positions first..stop-1."""
        if first < stop:
            self.stream.launch(_copy_masks, self._masks, self._masks_host, slots_B, first, stop)
        self.stream.record(self.mask_event)


def _copy_masks(to: SlotMasks, source: SlotMasks, slots_B: Tensor, first: int, stop: int) -> None:
    copy_slot_masks(to, source, slots_B, first, stop)


def _apply_masks(
    logits_NV: Tensor, masks: SlotMasks, slots_B: Tensor, first: int, d2t: Tensor | None
) -> None:
    apply_slot_masks_(logits_NV, masks, slots_B, first, d2t)
