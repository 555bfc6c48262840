"""The operations by slot in plain torch, put together of the references beside this."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.kernels.penalties import level_reference_, penalize_reference_, suppress_ends_reference_
from support.kernels.row_draws import RowDraws, top_p_after
from weft import _core
from weft.ops.slots import SlotParams, pick_drafts_

"""The count of a slot that stays where it is."""


def sample_slots_reference(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    params: SlotParams,
    temperatures: Tensor | None = None,
) -> Tensor:
    """`sample_slots_`, in place as that is."""
    width = inputs.shape[1]
    slot, base, inputs = (each.repeat_interleave(width, 0) for each in (slot, base, inputs))
    seen = torch.arange(width).repeat(len(logits) // width)
    draws = RowDraws.of(params, slot, base + 1 + seen, temperatures, seen).after(
        params, slot, inputs[:, 1:], seen
    )
    penalize_reference_(logits, slot, params, base + 1, inputs[:, 1:], seen, temperature=draws.temperature)
    suppress_ends_reference_(logits, slot, params, base + 1 + seen)
    level_reference_(logits, slot, params)
    return draws.tokens(logits)


def pick_drafts(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The drafts [B] of `pick_drafts_`, which are also in their places."""
    out = torch.full((logits.shape[0],), -7, device=logits.device)
    pick_drafts_(logits, *args, **kwargs, out=out)
    return out


def pick_drafts_reference(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    count: Tensor,
    drafts: Tensor,
    number: int,
    params: SlotParams,
    temperatures: Tensor | None = None,
    proposed: Tensor | None = None,
    d2t: Tensor | None = None,
) -> Tensor:
    """`pick_drafts_`, in place as that is."""
    length = base + count + 2
    seen = torch.full_like(slot, number - 1)
    before = drafts[: number - 1].T[slot]
    draws = RowDraws.of(params, slot, length + seen, temperatures).after(params, slot, before, seen)
    penalize_reference_(logits, slot, params, length, before, seen, d2t, draws.temperature)
    level_reference_(logits, slot, params)
    token = draws.tokens(logits, d2t)
    if proposed is not None:
        token = proposed[number - 1, slot].where(proposed[number - 1, slot] >= 0, token)
    token = token.where(params.max_drafts[slot] >= number, -1)
    drafts[number - 1, slot] = token
    return token


def advance_slots_reference(
    sampled: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    count: Tensor,
    tokens: Tensor,
    slots: tuple[Tensor, ...],
    params: SlotParams,
    is_counted: bool = False,
) -> None:
    """`advance_slots_`, in place as that is."""
    verified, last_token, length, proposed, drafts, verified_host = slots
    width = inputs.shape[1]
    for b, s in enumerate(slot.tolist()):
        given, drawn = inputs[b, 1:].tolist(), sampled[b].tolist()
        accepted = next((k for k in range(width - 1) if given[k] != drawn[k]), width - 1)
        accepted = int(count[b]) if is_counted else accepted
        count[b], tokens[b] = accepted, sampled[b]
        for rows in (verified, verified_host):
            rows[s, 0], rows[s, 1 : width + 1] = (
                _core.HELD_SLOT if params.is_held[s] else accepted,
                sampled[b],
            )
        if params.is_held[s]:
            continue
        last_token[s] = drawn[accepted]
        length[s] = 0 if s == len(length) - 1 else base[b] + accepted + 1
        if width > 1:
            proposed[s] = next((k for k in range(width - 1) if given[k] < 0), width - 1)
        drafts[width - 1 :, s] = -1
        params.top_p[s] = top_p_after(float(params.top_p[s]), params, s, drawn[: accepted + 1])
        for t in range(accepted + 1 if params.changes_logits[s] else 0):
            at = int(base[b]) + 1 + t
            if 0 <= at < params.history.shape[1]:
                params.history[s, at] = drawn[t]
            if 0 <= drawn[t] < params.counts.shape[1]:
                params.counts[s, drawn[t]] += 1
