"""The grammar state of slots: which matcher each slot has, and which mask rows are filled.

The native class holds the state and its operations; this file gives it host memory. The operations run in the order of
one stream:

- `fetch` takes the snapshot that `push` left.
- `extend(j)` advances each matcher over draft j if that is legal, and fills row j. `extend_through(k)` does so for
  drafts 1..k.
- `commit` rolls back rejected drafts, accepts the token sampled after the accepted ones, and fills row 0.

If a slot fails, it gets a status, and its rows allow only end tokens from then on. The other slots go on. If an
iteration leaves out its `commit`, the next `fetch` does it, or `commit_owed` on the host. At an iteration's end,
`commit_ahead` and `extend_ahead(k)` offer the work that follows to idle threads.

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
    """Allocate plain zeroed memory, for a state without a device."""
    return torch.zeros(shape, dtype=dtype)


class Edit(NamedTuple):
    """An edit of a slot's text by its matcher: drop the last `drop` tokens, then append `append`. At that point the
    slot has committed `committed` tokens since the matcher was attached."""

    committed: int
    drop: int
    append: list[int]


@dataclass(frozen=True)
class GuidedShape:
    """The sizes of a state: `num_slots` slots (S) with at most `max_drafts` drafts each (K), over `vocab_size` tokens
    (V). A mask row that would allow no token allows `end_token_ids`."""

    num_slots: int
    max_drafts: int
    vocab_size: int
    end_token_ids: Sequence[int]


class GuidedState(_core.GuidedState):
    """The matchers and mask rows of the slots of a shape.

    It reads these host tensors, which `pinned` allocates:

    drafts_host: int64 [K, S+1]; -1 for no draft.
    verified_host: int64 [S+1, K+2], the number of accepted drafts, then the tokens of positions 0..K.

    It writes these, where row slot*(K+1) + j is for the token after the committed text and j drafts:

    masks_host: int32 [(S+1)*(K+1), W].
    token_mask_host: int32 [(S+1)*(K+1)]; 0 if there is no mask to apply.
    temperatures_host: float32 [(S+1)*(K+1)], the temperature that the matcher asks for; negative for none.

    `workers` native threads help if a phase of matchers turns out long. From one commit to the next, a matcher may take
    `mask_time_limit_s` seconds of processor time (0: no limit). Processor time and waiting together may take the larger
    of that limit and 2 s. Beyond either, its slot fails. At most `max_pending` snapshots may wait to be fetched.
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
        """Make an operation a host task. The operation decides the meaning of `argument`:

        "fetch": 1 if this iteration leaves its commit to the next. "commit": unused. "extend": the draft, 1..K.
        "extend_through", "extend_ahead": the number of drafts, 0..K. "commit_ahead": unused.
        """
        return NativeTask(*self.task_address(operation, argument), self)

    def edit(self, slot: int) -> Edit | None:
        """The edit that the slot's matcher asked for, if its status is "edited"; else None."""
        values = super().edit(slot)
        return None if values is None else Edit(*values)
