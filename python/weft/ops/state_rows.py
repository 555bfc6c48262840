"""How the rows of a call map to the states of layers that keep a fixed size for each slot (`weft.ops.recurrence`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StateRows:
    """How the rows of a call map to states. Everything is int64 and on the device.

    slots: [B], the slot of each row. Rows of the last slot pad.
    source, target: [S+1], the storage row from which a slot's state is read, and the one to which it is written. They
        differ only for beams.
    owed: [S+1], the number of drafts of the slot's last iteration that were accepted. The source does not include them.
    num_speculative: the first rows, whose tokens after the first are drafts. The state after the first token is
        written, and the inputs of the drafts are kept. In the other rows, which are parts of prompts, the state after
        the last token is written.
    saves: [B], the storage row to which a part's last state is written too; -1 for none.

    A row whose first token has position 0 begins with the zero state. Several rows may have the same slot. They go on
    from each other: parts in their order, then the speculative row. The slot owes nothing to those after the first."""

    slots: Tensor
    source: Tensor
    target: Tensor
    owed: Tensor
    num_speculative: int
    saves: Tensor | None = None

    def __post_init__(self) -> None:
        # Check shapes and dtypes here, because a kernel can't report a mistake.
        batch, num_slots = self.slots.shape[0], self.owed.shape[0]
        vectors = (
            (self.slots, batch),
            (self.saves, batch),
            (self.source, num_slots),
            (self.target, num_slots),
        )
        for tensor, size in (*vectors, (self.owed, num_slots)):
            if tensor is None or (tensor.dtype is torch.int64 and tensor.shape == (size,)):
                continue
            raise TypeError(
                f"slots, saves, source, target and owed are int64, here [{size}], "
                f"not {tensor.dtype} {list(tensor.shape)}"
            )
