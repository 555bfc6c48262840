"""The grammar's state by slot: which matcher each slot has, and which mask rows are filled.

The native class holds the state and its operations; here it gets its host memory. In the order of one stream, `fetch`
takes the snapshot that `push` left, `extend(j)` takes draft j where it is legal and fills row j (`extend_through(k)`:
drafts 1..k at once), and `commit` takes back the drafts that were not accepted, takes the bonus token and fills row 0.
A slot that fails gets a status, and its rows then allow end tokens only; every other slot goes on. An iteration
without a `commit` owes it to the next `fetch`, or to `commit_owed` on the host.

S slots and one more for padding, K drafts, V vocabulary, W = ceil(V / 32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft import _core
from weft.runtime.interface import NativeTask

HostMemory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def host_memory(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Plain zeroed memory, for a state without a device."""
    return torch.zeros(shape, dtype=dtype)


class Edit(NamedTuple):
    """An edit of a slot's text after `committed` tokens since its matcher was attached: drop the last `drop` tokens,
    then append the tokens `append`."""

    committed: int
    drop: int
    append: list[int]


@dataclass(frozen=True)
class GuidedShape:
    """The sizes of a state: `num_slots` slots (S) with at most `max_drafts` drafts each (K), over `vocab_size` tokens
    (V). A row that would allow no token allows `end_token_ids`."""

    num_slots: int
    max_drafts: int
    vocab_size: int
    end_token_ids: Sequence[int]


class GuidedState(_core.GuidedState):
    """Matchers and mask rows of a shape's slots.

    Host tensors, from `pinned` and by slot: `drafts_host` int64 [K, S+1] (-1: no draft) and `verified_host`
    int64 [S+1, K+2] (the number of accepted drafts, then the tokens of positions 0..K) are read; `masks_host`
    int32 [(S+1)*(K+1), W], `token_mask_host` int32 [(S+1)*(K+1)] (0: nothing to apply) and `temperatures_host` float32
    [(S+1)*(K+1)] (what the matcher asks for; negative: nothing) are written. Row slot*(K+1) + j is for the token after
    the committed text and j drafts.

    `workers` native threads help with the matchers of a phase that turns out long. A matcher that takes longer than
    `mask_time_limit_s` (0: no limit) from one commit to the next fails its slot: processor time counts, and of waiting
    the part over 2 s. At most `max_pending` snapshots wait to be fetched.
    """

    def __init__(
        self,
        shape: GuidedShape,
        *,
        pinned: HostMemory = host_memory,
        workers: int = 0,
        mask_time_limit_s: float = 0.0,
        max_pending: int = 64,
    ) -> None:
        num_slots, max_drafts, vocab_size = shape.num_slots, shape.max_drafts, shape.vocab_size
        rows = (num_slots + 1) * (max_drafts + 1)
        self.end_token_ids = tuple(shape.end_token_ids)
        self.drafts_host = pinned((max_drafts, num_slots + 1), torch.int64)
        self.drafts_host.fill_(-1)
        self.verified_host = pinned((num_slots + 1, max_drafts + 2), torch.int64)
        self.masks_host = pinned((rows, -(-vocab_size // 32)), torch.int32)
        self.token_mask_host = pinned((rows,), torch.int32)
        self.temperatures_host = pinned((rows,), torch.float32)
        self.temperatures_host.fill_(-1)
        super().__init__(
            num_slots=num_slots,
            max_drafts=max_drafts,
            vocab_size=vocab_size,
            end_tokens=self.end_token_ids,
            drafts=self.drafts_host.numpy(),
            verified=self.verified_host.numpy(),
            masks=self.masks_host.numpy(),
            token_mask=self.token_mask_host.numpy(),
            temperatures=self.temperatures_host.numpy(),
            workers=workers,
            mask_time_limit_s=mask_time_limit_s,
            max_pending=max_pending,
        )

    def task(self, operation: str, argument: int = 0) -> NativeTask:
        """`"fetch"` (1: it owes its commit), `"commit"`, `"extend"` (its draft, 1..K) or `"extend_through"` (their
        number, 0..K) as a host task.
        """
        return NativeTask(*self.task_address(operation, argument), self)

    def edit(self, slot: int) -> Edit | None:
        """The edit of a slot whose status is "edited", else None."""
        values = super().edit(slot)
        return None if values is None else Edit(*values)
