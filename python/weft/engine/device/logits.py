"""What sampling parameters do to logits, for the target's positions and the drafter's, and to drafts.

A drafter's logits are shaped like the target's: what it picks is then likelier to be what the target samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.engine.device.sampling import SamplingState
from weft.engine.device.state import SlotState, StepBuffers
from weft.ops.penalties import penalize_
from weft.ops.truncation import truncation_floor
from weft.spec.base import repeat_rows


def shape_target(sampling: SamplingState, buf: StepBuffers) -> None:
    """Penalties, bias and bad words on the target's logits; position t has seen the drafts before it."""
    rows, width = buf.tokens_BT.shape
    slots_N = repeat_rows(buf.slots_B, width)
    length_N = repeat_rows(buf.verified.base_B + 1, width)
    drafts_NK = buf.tokens_BT[:, None, 1:].expand(rows, width, width - 1).contiguous().flatten(0, 1)
    seen_N = torch.arange(width, device=slots_N.device).repeat(rows)
    penalize_(buf.logits_BTV.flatten(0, 1), slots_N, sampling.penalties, length_N, drafts_NK, seen_N)


def shape_drafts(state: SlotState, buf: StepBuffers, j: int, d2t: Tensor | None) -> None:
    """The same on the logits of draft j, behind what was committed and the drafts before it."""
    assert buf.draft is not None
    verified, slots_B = buf.verified, buf.slots_B
    length_B = verified.base_B + verified.count_B + 2
    drafts_BK = state.drafts[: j - 1].index_select(1, slots_B).T.contiguous()
    seen_B = torch.full_like(slots_B, j - 1)
    penalize_(buf.draft.logits_BD, slots_B, state.sampling.penalties, length_B, drafts_BK, seen_B, d2t)


def limit_drafts(sampling: SamplingState, slots: Tensor, drafts: Tensor, first: int = 1) -> Tensor:
    """`drafts` [k, n] of the slots [n], draft number `first` in the first row; -1 beyond each slot's own limit."""
    number_K1 = torch.arange(first, first + drafts.shape[0], device=drafts.device)[:, None]
    return torch.where(number_K1 <= sampling.max_drafts.index_select(0, slots), drafts, -1)


def truncation(sampling: SamplingState, logits: Tensor, slots: Tensor, temperature: Tensor) -> Tensor:
    """[n] float32: the lowest logit of each row of `logits` [n, V] that its slot's truncation keeps."""
    return truncation_floor(
        logits,
        temperature,
        sampling.top_k.index_select(0, slots),
        sampling.top_p.index_select(0, slots),
        sampling.min_p.index_select(0, slots),
    )
