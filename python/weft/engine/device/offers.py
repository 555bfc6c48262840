"""Continuations that rows offer a search on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.engine.device.state import SlotState, StepBuffers
from weft.ops.log_probs import log_probs

_LOWEST_TEMPERATURE = 1e-5
"""A temperature below this is 0."""


@dataclass(frozen=True)
class OfferBuffers:
    """The likeliest continuations by slot, the likeliest first: `values` float32 [S+1, C], -inf for what can't be, and
    `ids` int64 [S+1, C]."""

    values: Tensor
    ids: Tensor

    @classmethod
    def allocate(cls, state: SlotState, num_offers: int) -> OfferBuffers:
        """Memory for `num_offers` continuations (C) of each slot."""
        shape, device = (state.length.shape[0], num_offers), state.length.device
        values = torch.full(shape, float("-inf"), dtype=torch.float32, device=device)
        return cls(values, torch.zeros(shape, dtype=torch.int64, device=device))


def note_offers(state: SlotState, buf: StepBuffers, offers: OfferBuffers) -> None:
    """The likeliest continuations of each row under all that acted on its logits. After an iteration, and no part of
    its graph. A temperature flattens or sharpens the distribution; 0, and what is as good as 0 when tokens are drawn,
    leaves it as it is."""
    temperature_B = state.params.floats[0].index_select(0, buf.slots_B)
    temperature_B = torch.where(temperature_B >= _LOWEST_TEMPERATURE, temperature_B, 1.0)
    logits_BV = buf.logits_BTV[:, 0].float() / temperature_B[:, None]
    values, ids = log_probs(logits_BV, torch.full_like(buf.slots_B, -1), offers.ids.shape[1])
    offers.values.index_copy_(0, buf.slots_B, values[:, 1:])
    offers.ids.index_copy_(0, buf.slots_B, ids[:, 1:])
