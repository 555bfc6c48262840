"""The grammar's lane on the host: `GuidedDecoder` between the captured parts of an iteration.

It has the calls of `GrammarLane`, so one step function serves both. Where the lane's calls enqueue, these issue what
was launched so far, wait for what they need of it, and work on the calling thread: the masks of drafts are made while
the target's forward runs; everything behind waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from weft.grammar.base import Matcher
from weft.guided.decoder import GuidedDecoder
from weft.guided.lane import put_temperatures
from weft.guided.proposals import Proposals
from weft.guided.snapshot import GuidedRequest
from weft.guided.state import GuidedState
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream
from weft.runtime.segments import SegmentedStream


class HostLane:
    """`GrammarLane`'s calls, on a stream that is captured in segments; the same device tensors by slot.

    Between `push` and the end of an iteration all calls are for the pushed slots, in their order.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        num_slots: int,
        max_drafts: int,
        vocab_size: int,
        end_token_ids: Sequence[int],
        *,
        make_proposals: Callable[[GuidedState], Proposals] | None = None,
        mask_time_limit_s: float = 0.0,
    ) -> None:
        self.decoder = GuidedDecoder(
            runtime,
            num_slots,
            max_drafts,
            vocab_size,
            end_token_ids,
            stream=stream,
            mask_time_limit_s=mask_time_limit_s,
        )
        self.state = self.decoder.state
        self.drafts = torch.full_like(self.state.drafts_host, -1, device=runtime.device)
        self.verified = torch.zeros_like(self.state.verified_host, device=runtime.device)
        self.token_mask = torch.zeros_like(self.state.token_mask_host, device=runtime.device)
        self.temperatures = torch.full_like(self.state.temperatures_host, -1, device=runtime.device)
        self.proposals = make_proposals(self.state) if make_proposals is not None else None
        self.proposed = torch.full_like(self.drafts, -1)
        self._stream = stream
        self._drafts_out = PinnedRing(runtime, self.drafts)
        self._verified_out = PinnedRing(runtime, self.verified)
        self._slots: list[int] = []
        self._num_drafted = 0

    def push(self, slots: Sequence[int], attach: Mapping[int, Matcher | None], num_drafts: int = 0) -> None:
        """The slots of the next iteration, and who gets which matcher. Every slot has `num_drafts` drafts, none of
        which may be a token."""
        self._slots = list(slots)
        self.decoder.detach([slot for slot in attach if slot not in self._slots])
        stale = {
            slot for slot in self._slots if slot in attach or self.decoder.num_drafts(slot) != num_drafts
        }
        drafts: dict[int, tuple[int, ...]] = dict.fromkeys(stale, ())
        if stale and num_drafts:
            known = self._drafts_out.receive(self._stream)
            drafts = {slot: tuple(known[:num_drafts, slot].tolist()) for slot in stale}
        requests = [
            GuidedRequest(slot, attach.get(slot), is_new=slot in attach, draft_tokens=drafts.get(slot))
            for slot in self._slots
        ]
        self.decoder.add_batch(requests)

    def verify_masks(self, stream: Stream, slots_B: Tensor, num_drafts: int) -> None:
        """The masks are made while the target's forward runs: `apply_verify`."""

    def follow(self, stream: Stream) -> None:
        """Nothing to take: `push` told the decoder."""

    def first_mask(self, stream: Stream, slots_B: Tensor) -> None:
        """Made by `apply_verify`."""

    def apply_verify(
        self, stream: Stream, logits_BTV: Tensor, slots_B: Tensor, d2t: Tensor | None = None
    ) -> None:
        """Issue the forward, make the masks meanwhile, and mask the target's logits [B, T, V]."""
        _flush(stream)
        if self._slots:
            self.decoder.execute(logits_BTV[: len(self._slots)].flatten(0, 1), d2t)

    def set_temperatures(self, stream: Stream, temperature_BT: Tensor, slots_B: Tensor) -> None:
        """Put the temperatures that matchers want."""
        stream.copy(self.temperatures, self.state.temperatures_host)
        stream.launch(put_temperatures, temperature_BT, self.temperatures, slots_B, self.state.max_drafts + 1)

    def commit_masks(self, stream: Stream, slots_B: Tensor) -> None:
        """Wait for what was verified, and tell the decoder."""
        _flush(stream)
        self._num_drafted = 0
        if not self._slots:
            return
        rows = self._verified_out.receive(self._stream)[self._slots].tolist()
        self.decoder.rollback_rejected_tokens([row[0] for row in rows], [row[1 + row[0]] for row in rows])

    def propose(self, stream: Stream, num_drafts: int, is_committed: bool) -> None:
        """Let the host propose drafts, and send them."""
        assert self.proposals is not None
        if not is_committed:
            self.commit_masks(stream, self.verified)
        _flush(stream)
        if self._slots:
            self.decoder.advance()
            # Not in the stream: another prompt's `push` may come before the stream gets there. What was proposed last
            # is copied by now: `commit_masks` waited for what is behind it.
            self.proposals.run(num_drafts)
        self._stream.copy(self.proposed, self.proposals.proposed_host)

    def wait_proposals(self, stream: Stream) -> None:
        """They are in the stream's own order."""

    def apply_draft(
        self, stream: Stream, logits_BD: Tensor, slots_B: Tensor, j: int, d2t: Tensor | None = None
    ) -> None:
        """Issue the drafter's forward and mask its logits [B, Vd] of draft j."""
        _flush(stream)
        if self._slots:
            self.decoder.execute_draft_batch(logits_BD[: len(self._slots)], d2t)

    def extend_masks(self, stream: Stream, j: int, slots_B: Tensor) -> None:
        """Wait for draft j, and tell the decoder."""
        _flush(stream)
        if self._slots:
            drafts = self._drafts_out.receive(self._stream)
            self._tell(drafts, j)

    def join(self, stream: Stream, num_drafts: int = 0) -> None:
        """Issue what is left, commit meanwhile, and tell the decoder of the drafts that it does not know."""
        _flush(stream)
        self.decoder.advance()
        if self._slots and self._num_drafted < num_drafts:
            self._tell(self._drafts_out.receive(self._stream), num_drafts)

    def synchronize(self) -> None:
        """Nothing of its own is in flight."""

    def close(self) -> None:
        """Nothing of its own is in flight."""

    def _tell(self, drafts: Tensor, count: int) -> None:
        """Drafts up to number `count`, of [K, S+1]."""
        for j in range(self._num_drafted, count):
            self.decoder.add_draft_batch(drafts[j, self._slots].tolist())
        self._num_drafted = count


def _flush(stream: Stream) -> None:
    """Issue what was collected."""
    assert isinstance(stream, SegmentedStream)
    stream.flush()
