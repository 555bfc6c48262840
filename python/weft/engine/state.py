"""Device state: per request slot, and the fixed buffers of graphs of one batch size.

There are S request slots and one more, the last, for rows that only pad a batch. Every tensor here is allocated once:
graphs hold its address.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.models.base import Model, PagedKV
from weft.spec.base import DraftBuffers, Drafter, Verified


class SlotState:
    """What the device knows of each slot; `length` is the number of tokens in the KV, the position of `last_token`.

    `drafts` [K, S+1] and `verified` [S+1, K+2] are the grammar lane's (`guided/lane.py`): draft j of a slot is
    `drafts[j-1, slot]`, -1 for none; a row of `verified` is the count of accepted drafts, then the target's tokens.
    """

    def __init__(
        self, num_slots: int, pages_per_slot: int, drafts: Tensor, verified: Tensor, device: torch.device
    ) -> None:
        self.dummy = num_slots
        rows = num_slots + 1
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(rows, pages_per_slot, dtype=torch.int32, device=device)
        self.temperature = torch.zeros(rows, dtype=torch.float32, device=device)
        self.seed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.drafts = drafts
        self.verified = verified


@dataclass(frozen=True)
class StepBuffers:
    """What crosses the nodes of one iteration over B rows that verifies T - 1 drafts."""

    slots_B: Tensor
    tokens_BT: Tensor
    logits_BTV: Tensor
    verified: Verified
    draft: DraftBuffers | None

    @classmethod
    def allocate(
        cls, batch: int, width: int, model: Model, state: SlotState, drafter: Drafter | None
    ) -> StepBuffers:
        config, device = model.config, state.length.device
        aux = len(drafter.aux_layers) if drafter is not None else 0

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        return cls(
            slots_B=torch.full((batch,), state.dummy, dtype=torch.int64, device=device),
            tokens_BT=integers(batch, width),
            logits_BTV=torch.zeros(batch, width, config.vocab_size, dtype=config.dtype, device=device),
            verified=Verified(
                tokens_BT=integers(batch, width),
                count_B=integers(batch),
                base_B=integers(batch),
                aux_BTF=torch.zeros(
                    batch, width, aux * config.hidden_size, dtype=config.dtype, device=device
                ),
                page_table_BP=torch.zeros(batch, state.page_table.shape[1], dtype=torch.int32, device=device),
            ),
            draft=drafter.draft_buffers(batch) if drafter is not None else None,
        )


@dataclass(frozen=True)
class DecodeParts:
    """What an engine decodes with."""

    model: Model
    kv: PagedKV
    drafter: Drafter | None
    state: SlotState

    @property
    def num_drafts(self) -> int:
        return self.drafter.num_draft_tokens if self.drafter is not None else 0

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers if self.drafter is not None else ()
