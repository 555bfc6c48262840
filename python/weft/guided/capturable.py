"""Guided decoding for a loop that is captured in a graph. The host's work runs in host function nodes of the graph.

An iteration has `batch_size` rows (B). Everything but `add_batch` is captured::

    decoder.add_batch(requests)                        # on the host, before each launch
    with decoder.step():
        stream.launch(model_forward, ...)
        decoder.execute(logits)
        stream.launch(sample_and_verify, ...)
        decoder.rollback_rejected_tokens(num_accepted, new_tokens)
        for _ in range(num_drafts):                    # with a drafter
            stream.launch(draft_forward, ...)
            decoder.execute_draft_batch(draft_logits, d2t)
            stream.launch(pick_draft, ...)
            decoder.add_draft_batch(draft_tokens)

`num_accepted`, `new_tokens` and `draft_tokens` are device tensors that the launched functions wrote. The methods have
the same names as those of `GuidedDecoder`, and lead to the same tokens. Outside a capture the same calls run eagerly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from weft.errors import InputError
from weft.guided.decoder import GuidedRequest, attach_of, check_batch
from weft.guided.grammar_stream import GrammarStream
from weft.guided.state import GuidedShape
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream


class CapturableGuidedDecoder:
    """Masks logits for up to `num_slots` requests (S) with up to `max_drafts` drafts each (K), in iterations of
    `batch_size` rows (B).

    Work goes to `stream` and to a grammar stream; events order the two.

    drafts: int64 [K, S+1] on the device, each slot's drafts for the target's forward (-1: none).
    slots: int64 [B] on the device, the slot of each row. Padding rows have slot S.
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
        batch_size: int,
        mask_time_limit_s: float = 0.0,
    ) -> None:
        shape = GuidedShape(num_slots, max_drafts, vocab_size, end_token_ids)
        self.grammar = GrammarStream(runtime, shape, mask_time_limit_s=mask_time_limit_s)
        self.state = self.grammar.state
        self.drafts = self.grammar.drafts
        self.slots = torch.full((batch_size,), num_slots, dtype=torch.int64, device=runtime.device)
        self._stream = stream
        self._slots_in = PinnedRing(runtime, self.slots)
        self._num_drafts = 0
        runtime.publish()

    def add_batch(self, requests: Sequence[GuidedRequest]) -> None:
        """Set the requests of the next launch, in the order of the rows. Call it once before each launch, outside the
        capture.

        Raises `InputError` if the batch does not fit, or if a request has tokens: this decoder reads them on the
        device.
        """
        batch_size, num_slots = self.slots.shape[0], self.state.num_slots
        check_batch(requests, num_slots, self.state.max_drafts)
        if len(requests) > batch_size:
            raise InputError(f"{len(requests)} requests do not fit in a batch of {batch_size}")
        if any(r.new_token is not None or r.draft_tokens is not None for r in requests):
            raise InputError("a captured decoder takes tokens on the device, not from its requests")
        slots = [request.slot for request in requests]
        self.state.push(slots, attach_of(requests))
        padded = slots + [num_slots] * (batch_size - len(slots))
        self._slots_in.send(self._stream, torch.tensor(padded))
        begun = [request.slot for request in requests if request.begins]
        if begun:
            self._stream.launch(_clear_drafts, self.drafts, begun)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The scope of one iteration. On entry the host starts filling masks, in parallel with the first work
        inside."""
        self._num_drafts = 0
        self.grammar.all_masks(self._stream, self.slots)
        yield
        self.grammar.join(self._stream)

    def execute(self, logits: Tensor, d2t: Tensor | None = None) -> None:
        """Mask the target's logits in place: [B, V], or [B, T, V] with position t after the first t drafts.

        `d2t` int64 [V] has the offsets of a pruned vocabulary: column c stands for token c + d2t[c].
        """
        logits_BTV = logits.view(self.slots.shape[0], -1, logits.shape[-1])
        self.grammar.apply_verify(self._stream, logits_BTV, self.slots, d2t)

    def rollback_rejected_tokens(self, num_accepted: Tensor | None, new_tokens: Tensor) -> None:
        """Take the result of verification, int64 [B] each: the number of accepted drafts (None: there were no drafts)
        and the token sampled after them. The matchers roll back the rejected drafts."""
        self._stream.launch(
            _write_verified, self.grammar.verified, self.drafts, self.slots, num_accepted, new_tokens
        )
        self.grammar.commit_masks(self._stream, self.slots, copies=True)

    def add_draft_batch(self, draft_tokens: Tensor) -> None:
        """Take the next draft of each row: int64 [B], as ids of the target's vocabulary; -1 for none. Raises
        `InputError` for more than `max_drafts` drafts."""
        if self._num_drafts == self.state.max_drafts:
            raise InputError(f"there are {self._num_drafts} drafts already, as many as max_drafts")
        self._num_drafts += 1
        j = self._num_drafts
        self._stream.launch(_write_draft, self.drafts[j - 1], self.slots, draft_tokens)
        # No draft follows the last one. Only verification needs the mask after it, which is filled during the next
        # forward.
        if j < self.state.max_drafts:
            self.grammar.extend_masks(self._stream, j, self.slots, copies=True)

    def execute_draft_batch(self, logits: Tensor, d2t: Tensor | None = None) -> None:
        """Mask the drafter's logits [B, Vd] of the next draft in place; `d2t` as in `execute`."""
        self.grammar.apply_draft(self._stream, logits, self.slots, self._num_drafts + 1, d2t)

    def rollback_draft_tokens(self) -> None:
        """Drop the drafts without verifying them."""
        self._stream.launch(_drop_drafts, self.drafts, self.slots)
        self._num_drafts = 0

    def status(self, slot: int) -> tuple[str, str]:
        """The code and message of the failure that ended the slot's grammar; ("", "") without a failure. Call it after
        the launch is done.
        """
        return self.state.status(slot)

    def close(self) -> None:
        """Wait for the work on the grammar stream."""
        self.grammar.close()


def _clear_drafts(drafts_KS: Tensor, slots: list[int]) -> None:
    for slot in slots:
        drafts_KS[:, slot].fill_(-1)


def _drop_drafts(drafts_KS: Tensor, slots_B: Tensor) -> None:
    drafts_KS[:, slots_B] = -1


def _write_draft(draft_S: Tensor, slots_B: Tensor, tokens_B: Tensor) -> None:
    draft_S[slots_B] = tokens_B


def _write_verified(
    verified_SK: Tensor, drafts_KS: Tensor, slots_B: Tensor, accepted_B: Tensor | None, tokens_B: Tensor
) -> None:
    """Write [n, the first n drafts, the token after them] for each row's slot, and clear its drafts."""
    if accepted_B is None:
        accepted_B = torch.zeros_like(slots_B)
    drafts_BK = drafts_KS[:, slots_B].T
    tokens_BT = torch.cat([drafts_BK, torch.zeros_like(slots_B)[:, None]], dim=1)
    tokens_BT.scatter_(1, accepted_B[:, None], tokens_B[:, None])
    verified_SK[slots_B] = torch.cat([accepted_B[:, None], tokens_BT], dim=1)
    drafts_KS[:, slots_B] = -1
