"""What a decoder is told of each request in a batch, before an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.grammar.base import Matcher


@dataclass(frozen=True)
class GuidedRequest:
    """One request's part of a batch; its place in the batch is its place in the list.

    `slot` is where the decoder keeps the request's state, the same in every iteration. A request's first
    batch gives its `matcher`, or `is_new` with none for a request without a guide: both clear the slot. Later
    batches give neither. Where tokens are known to the host (`GuidedDecoder` only), `new_token` is the token
    sampled last, if no `rollback_rejected_tokens` has told it, and `draft_tokens` are the drafts to verify,
    if no `add_draft_batch` has.
    """

    slot: int
    matcher: Matcher | None = None
    is_new: bool = False
    new_token: int | None = None
    draft_tokens: tuple[int, ...] | None = None

    @property
    def begins(self) -> bool:
        """Whether the slot starts afresh."""
        return self.is_new or self.matcher is not None


def check_batch(requests: Sequence[GuidedRequest], num_slots: int, max_drafts: int) -> None:
    """Raises `InputError` for slots that are out of range or named twice, and for too many drafts."""
    slots = [request.slot for request in requests]
    for request in requests:
        if not 0 <= request.slot < num_slots:
            raise InputError(f"slot {request.slot} is not in 0..{num_slots - 1}")
        if request.draft_tokens is not None and len(request.draft_tokens) > max_drafts:
            raise InputError(f"slot {request.slot} has {len(request.draft_tokens)} drafts, over {max_drafts}")
    if len(set(slots)) != len(slots):
        raise InputError("two requests of the batch have one slot")


def attach_of(requests: Sequence[GuidedRequest]) -> dict[int, Matcher | None]:
    """What the batch changes about which slot has which matcher."""
    return {request.slot: request.matcher for request in requests if request.begins}
