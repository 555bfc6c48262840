"""Log-probabilities of what an iteration verified, by slot: the model's own, or those of what was sampled from."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.ops.log_probs import log_probs, log_probs_within, note_allowed_, scaled

LOWEST_TEMPERATURE = 1e-5
"""A temperature below this is greedy."""


def note_temperatures(state: SlotState, buf: StepBuffers, temperatures: Tensor | None) -> None:
    """Keep what each position is drawn with: the guide's temperature goes before the request's, and may be another when
    the log-probabilities are noted. A device function."""
    rows, width = buf.temperatures_BT.shape
    own_B1 = state.params.floats[0].index_select(0, buf.slots_B)[:, None]
    if temperatures is None:
        buf.temperatures_BT.copy_(own_B1.expand(rows, width))
        return
    slots = state.length.shape[0]
    wanted_BT = temperatures.view(slots, -1).index_select(0, buf.slots_B)[:, :width]
    buf.temperatures_BT.copy_(torch.where(wanted_BT >= 0, wanted_BT, own_B1))


def note_logprobs(parts: DecodeParts, buf: StepBuffers, most: int) -> None:
    """Log-probabilities of what was verified, of the rows whose slots want them, and what could be drawn. After an
    iteration, and no part of its graph: few requests ask. `most` is the largest top_k of its requests."""
    state = parts.state
    rows, width = buf.tokens_BT.shape
    token_N, num_top = buf.verified.tokens_BT.view(-1), state.logprob_ids.shape[2] - 1
    masked_NV = buf.logits_BTV.flatten(0, 1)
    if parts.logprobs == "raw":
        values, ids = log_probs(buf.raw_logits_BTV.flatten(0, 1), token_N, num_top)
        whole_N1 = values[:, :1]
    else:
        temperature_N = buf.temperatures_BT.flatten()
        is_warm_N = temperature_N >= LOWEST_TEMPERATURE
        min_p_N = _by_row(state.params.floats[2], buf)
        scaled_NV = scaled(
            masked_NV, torch.where(is_warm_N, temperature_N, 1.0), torch.where(is_warm_N, min_p_N, 0.0)
        )
        values, ids = log_probs(scaled_NV, token_N, num_top)
        whole_N1 = values[:, :1]
        if parts.logprobs == "normalized":
            top_k_N = torch.where(is_warm_N, _by_row(state.params.ints[0], buf), 1)
            values, ids = log_probs_within(scaled_NV, token_N, num_top, top_k_N, max(most, 1))
    note_allowed_(ids, masked_NV)
    values = torch.cat((values, whole_N1), 1)
    state.logprobs.narrow(1, 0, width).index_copy_(0, buf.slots_B, values.view(rows, width, -1))
    state.logprob_ids.narrow(1, 0, width).index_copy_(0, buf.slots_B, ids.view(rows, width, -1))


def _by_row(by_slot: Tensor, buf: StepBuffers) -> Tensor:
    """Numbers of slots, for each row of logits: [N]."""
    return by_slot.index_select(0, buf.slots_B).repeat_interleave(buf.tokens_BT.shape[1])
