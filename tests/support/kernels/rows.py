"""Applies the operations by slot to rows of logits that have a slot each."""

from __future__ import annotations

import torch
from torch import Tensor

from support.kernels.row_draws import RowDraws
from support.kernels.slots import pick_drafts
from weft.ops.slots import SlotParams, sample_slots_


def rows_params(
    rows: int,
    vocab: int,
    *,
    temperature: Tensor | float = 0.0,
    seed: Tensor | int = 0,
    top_k: Tensor | int = 0,
    top_p: Tensor | float = 1.0,
    min_p: Tensor | float = 0.0,
    bad_words: int = 1,
    max_length: int = 1,
) -> SlotParams:
    """Make slots 0 to rows - 1 with these parameters, for one row each, and a last slot for padding. Each may have one
    draft."""
    params = SlotParams.neutral(rows + 1, vocab, bad_words, 1, max_length, torch.device("cpu"))
    params.temperature[:rows], params.top_p[:rows], params.min_p[:rows] = temperature, top_p, min_p
    params.seed[:rows], params.top_k[:rows], params.max_drafts[:] = seed, top_k, 1
    return params


def sample_rows(logits: Tensor, params: SlotParams, position: Tensor, times: int = 1) -> Tensor:
    """Run `sample_slots_` on row i with slot i, for the token at position[i], or for `times` positions from there
    on."""
    slot = torch.arange(len(logits), device=logits.device)
    if times > 1:
        logits = logits.repeat_interleave(times, 0)
    return sample_slots_(logits, slot, position - 1, slot.new_zeros(len(slot), times), params)


def draft_rows(logits: Tensor, params: SlotParams, position: Tensor, d2t: Tensor | None = None) -> Tensor:
    """Run `pick_drafts_` on row i with slot i, for the first draft, which is the token at position[i]."""
    slot = torch.arange(len(logits), device=logits.device)
    drafts = slot.new_full((1, len(params.ends)), -1)
    return pick_drafts(logits, slot, position - 2, torch.zeros_like(slot), drafts, 1, params, d2t=d2t)


def check_rows(
    token: Tensor,
    logits: Tensor,
    params: SlotParams,
    position: Tensor,
    d2t: Tensor | None = None,
    times: int = 1,
) -> None:
    """Check that `token` is the draw of `sample_rows` or `draft_rows`, up to rounding."""
    slot = torch.arange(len(logits)).repeat_interleave(times)
    after = (position[:, None] + torch.arange(times)).flatten()
    RowDraws.of(params, slot, after).check(token, logits.repeat_interleave(times, 0), d2t)
