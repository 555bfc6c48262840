"""Guided decoding for your own decode loop, without graphs. The host's work runs on the calling thread.

An iteration with B requests in the batch::

    decoder.add_batch(requests)                        # the requests of the batch, in its order
    logits = model(...)                                # enqueued; the device is busy now
    decoder.execute(logits)                            # makes the masks meanwhile, then applies them
    accepted, tokens = ...                             # sample, compare with the drafts
    decoder.rollback_rejected_tokens(accepted, tokens)
    for _ in range(num_drafts):                        # with a drafter
        draft_logits = drafter(...)
        decoder.execute_draft_batch(draft_logits, d2t)
        drafts = ...                                   # pick
        decoder.add_draft_batch(drafts)

Without speculation, an iteration needs only `add_batch` and `execute`: each request then carries its last token as
`new_token`. `CapturableGuidedDecoder` has the same methods for a captured loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.errors import InputError
from weft.grammar.base import Matcher
from weft.guided.state import GuidedShape, GuidedState
from weft.ops.token_mask import apply_token_bitmask_, copy_mask_rows
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream


@dataclass(frozen=True)
class GuidedRequest:
    """One request of a batch. Its place in the list is its place in the batch.

    slot: the slot that keeps the request's state. It must be the same in every iteration.
    matcher, is_new: in the request's first batch, give its matcher, or `is_new` if it has no guide. Both reset the
        slot. In later batches, give neither.
    new_token: the token sampled last, unless `rollback_rejected_tokens` took it. `GuidedDecoder` only.
    draft_tokens: the drafts to verify, unless `add_draft_batch` took them. `GuidedDecoder` only.
    """

    slot: int
    matcher: Matcher | None = None
    is_new: bool = False
    new_token: int | None = None
    draft_tokens: tuple[int, ...] | None = None

    @property
    def begins(self) -> bool:
        """Whether this batch resets the slot."""
        return self.is_new or self.matcher is not None


def check_batch(requests: Sequence[GuidedRequest], num_slots: int, max_drafts: int) -> None:
    """Raise `InputError` if a slot is out of range or occurs twice, or if a request has too many drafts."""
    slots = [request.slot for request in requests]
    for request in requests:
        if not 0 <= request.slot < num_slots:
            raise InputError(f"slot {request.slot} is not in 0..{num_slots - 1}")
        if request.draft_tokens is not None and len(request.draft_tokens) > max_drafts:
            raise InputError(f"slot {request.slot} has {len(request.draft_tokens)} drafts, over {max_drafts}")
    if len(set(slots)) != len(slots):
        raise InputError("two requests of the batch have one slot")


def attach_of(requests: Sequence[GuidedRequest]) -> dict[int, Matcher | None]:
    """The new matchers of slots that the batch resets, by slot; None for a slot without a guide."""
    return {request.slot: request.matcher for request in requests if request.begins}


@dataclass
class _Row:
    """The host's state of a slot.

    drafts: the drafts to verify next.
    accepted: how many of them verification accepted; None before it.
    verified: the result that is not committed yet: the number of accepted drafts, these drafts, and the token after
        them. Empty if there is none.
    """

    drafts: list[int] = field(default_factory=list)
    accepted: int | None = None
    verified: list[int] = field(default_factory=list)

    def commit(self, token: int) -> None:
        """Set `verified` from the accepted drafts and the `token` sampled after them. Without a verification, all
        drafts count as accepted."""
        accepted = len(self.drafts) if self.accepted is None else self.accepted
        self.verified = [accepted, *self.drafts[:accepted], token]
        self.drafts = []
        self.accepted = None


class GuidedDecoder:
    """Masks logits on a runtime's device, for up to `num_slots` requests at a time (S) with up to `max_drafts` drafts
    each (K).

    `vocab_size` is the target's. A mask that would allow no token allows `end_token_ids`. Masks are applied on
    `stream`, or without one on the calling thread's current stream. If a request's grammar fails, its `status` says
    so, and the other requests go on."""

    def __init__(
        self,
        runtime: Runtime,
        num_slots: int,
        max_drafts: int,
        vocab_size: int,
        end_token_ids: Sequence[int],
        *,
        stream: Stream | None = None,
        mask_time_limit_s: float = 0.0,
    ) -> None:
        shape = GuidedShape(num_slots, max_drafts, vocab_size, end_token_ids)
        self.state = GuidedState(shape, pinned=runtime.pinned, mask_time_limit_s=mask_time_limit_s)
        self._runtime = runtime
        self._stream = stream
        self._masks = torch.zeros_like(self.state.masks_host, device=runtime.device)
        self._token_mask = torch.zeros_like(self.state.token_mask_host, device=runtime.device)
        self._rows = [_Row() for _ in range(num_slots)]
        self._batch: tuple[GuidedRequest, ...] = ()
        self._attach: dict[int, Matcher | None] = {}
        self._num_drafted = 0
        self._has_in_flight = False
        runtime.publish()

    def add_batch(self, requests: Sequence[GuidedRequest]) -> None:
        """Set the requests of the next iteration, in the order of the logits' rows. Raises `InputError` as
        `check_batch` does."""
        check_batch(requests, self.state.num_slots, self.state.max_drafts)
        self._settle()
        for request in requests:
            if request.begins:
                self._rows[request.slot] = _Row()
            if request.new_token is not None:
                self._rows[request.slot].commit(request.new_token)
            if request.draft_tokens is not None:
                self._drop_drafts(request.slot)
                self._rows[request.slot].drafts = list(request.draft_tokens)
        self._attach |= attach_of(requests)
        self._batch = tuple(requests)

    @property
    def num_rows(self) -> int:
        """The number of logits rows that `execute` expects: one for each request, and one for each of its drafts, also
        for a draft of -1."""
        return sum(1 + len(self._rows[request.slot].drafts) for request in self._batch)

    def execute(self, logits: Tensor, d2t: Tensor | None = None) -> None:
        """Mask the target's logits [num_rows, V] in place. A request's first row is for its next token, and one row
        follows for the token after each draft.

        `d2t` int64 [V] has the offsets of a pruned vocabulary: column c stands for token c + d2t[c]. Raises
        `InputError` for another number of rows.
        """
        self._advance()
        positions = self.state.max_drafts + 1
        rows = [
            request.slot * positions + position
            for request in self._batch
            for position in range(1 + len(self._rows[request.slot].drafts))
        ]
        self._apply(logits, rows, d2t)

    def rollback_rejected_tokens(
        self, num_accepted: Sequence[int], new_tokens: Sequence[int] | None = None
    ) -> None:
        """Take the result of verification, by place in the batch: the number of accepted drafts. The matchers roll back
        the others when they advance next.

        `new_tokens` are the tokens sampled after the accepted drafts. Without them, the next `add_batch` must give each
        `new_token`. Raises `InputError` for lists of another length, and for more accepted drafts than there are.
        """
        self._check_length("num_accepted", num_accepted)
        if new_tokens is not None:
            self._check_length("new_tokens", new_tokens)
        self._settle()
        for i, request in enumerate(self._batch):
            row = self._rows[request.slot]
            if not 0 <= num_accepted[i] <= len(row.drafts):
                raise InputError(
                    f"slot {request.slot} has {len(row.drafts)} drafts; {num_accepted[i]} can't be accepted"
                )
            row.accepted = int(num_accepted[i])
            if new_tokens is not None:
                row.commit(int(new_tokens[i]))
        self._num_drafted = 0

    def add_draft_batch(self, draft_tokens: Sequence[int]) -> None:
        """Take the next draft of each request, by place in the batch, as an id of the target's vocabulary; -1 for none.
        Raises `InputError` for more than `max_drafts` drafts."""
        self._check_length("draft_tokens", draft_tokens)
        if self._num_drafted == self.state.max_drafts:
            raise InputError(f"there are {self._num_drafted} drafts already, as many as max_drafts")
        self._settle()
        for request, token in zip(self._batch, draft_tokens, strict=True):
            self._rows[request.slot].drafts.append(int(token))
        self._num_drafted += 1

    def execute_draft_batch(self, logits: Tensor, d2t: Tensor | None = None) -> None:
        """Mask the drafter's logits [B, Vd] of the next draft in place; `d2t` as in `execute`."""
        self._advance()
        positions = self.state.max_drafts + 1
        rows = [request.slot * positions + len(self._rows[request.slot].drafts) for request in self._batch]
        self._apply(logits, rows, d2t)

    def rollback_draft_tokens(self) -> None:
        """Drop the drafts without verifying them."""
        self._settle()
        for request in self._batch:
            self._drop_drafts(request.slot)
        self._num_drafted = 0

    def advance(self) -> None:
        """Advance the matchers over the known tokens now, rather than in the next `execute`."""
        self._settle()
        self._advance()

    def num_drafts(self, slot: int) -> int:
        """The number of drafts that the slot has."""
        return len(self._rows[slot].drafts)

    def detach(self, slots: Sequence[int]) -> None:
        """Detach the matchers of slots whose requests have ended. It takes effect when the matchers advance next."""
        self._attach |= dict.fromkeys(slots)
        for slot in slots:
            self._rows[slot] = _Row()

    def status(self, slot: int) -> tuple[str, str]:
        """The code and message of the failure that ended the slot's grammar; ("", "") without a failure
        (`GuidedState.status`).
        """
        return self.state.status(slot)

    def _drop_drafts(self, slot: int) -> None:
        row = self._rows[slot]
        row.drafts = []
        if not row.verified:
            self.state.release(slot)

    def _advance(self) -> None:
        """Advance the matchers over all known tokens: attach new matchers, commit tokens, then accept drafts."""
        slots = [request.slot for request in self._batch]
        ready = [slot for slot in slots if self._rows[slot].verified]
        if self._attach or ready:
            attach, self._attach = self._attach, {}
            self.state.push(ready, attach)
            self.state.fetch()
        for slot in ready:
            verified, self._rows[slot].verified = self._rows[slot].verified, []
            self.state.verified_host[slot, : len(verified)] = torch.tensor(verified)
        if ready:
            self.state.commit()
        longest = max((len(self._rows[slot].drafts) for slot in slots), default=0)
        if longest:
            self._extend(slots, longest)

    def _extend(self, slots: list[int], longest: int) -> None:
        for slot in slots:
            drafts = self._rows[slot].drafts
            padded = drafts + [-1] * (self.state.max_drafts - len(drafts))
            self.state.drafts_host[:, slot] = torch.tensor(padded)
        self.state.push(slots, {})
        self.state.fetch()
        for draft in range(1, longest + 1):
            self.state.extend(draft)

    def _apply(self, logits: Tensor, rows: list[int], d2t: Tensor | None) -> None:
        logits_NV = logits.view(-1, logits.shape[-1])
        if logits_NV.shape[0] != len(rows):
            raise InputError(f"the logits have {logits_NV.shape[0]} rows; the batch has {len(rows)}")
        rows_host = pinned_copy(self._runtime, rows, torch.int32)
        if self._stream is None:
            self._mask(logits_NV, rows_host, d2t)
        else:
            self._stream.launch(self._mask, logits_NV, rows_host, d2t)
        self._has_in_flight = True

    def _mask(self, logits_NV: Tensor, rows_host: Tensor, d2t: Tensor | None) -> None:
        state = self.state
        rows_N = rows_host.to(self._masks.device, non_blocking=True)
        copy_mask_rows(self._masks, state.masks_host, self._token_mask, state.token_mask_host, rows_N)
        apply_token_bitmask_(
            logits_NV, self._masks, rows=rows_N, token_mask=self._token_mask[rows_N], d2t=d2t
        )

    def _settle(self) -> None:
        """Wait until the device no longer reads the host's masks, so that they may change."""
        if self._has_in_flight:
            if self._stream is None:
                self._runtime.synchronize()
            else:
                self._stream.synchronize()
            self._has_in_flight = False

    def _check_length(self, name: str, values: Sequence[int]) -> None:
        if len(values) != len(self._batch):
            raise InputError(f"{name} has {len(values)} entries; the batch has {len(self._batch)}")
