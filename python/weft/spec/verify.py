"""Verification: sample the target at every drafted position and keep the drafts that it would have chosen itself.

Sampling is coupled (`ops/sampling.py`): the target's token at a position is a function of its logits, the request's
seed and the position, and a draft is kept when it is that token. So what is committed is what decoding without
speculation would have sampled, whatever the drafter proposed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def count_accepted(sampled_BT: Tensor, drafts_BK: Tensor) -> Tensor:
    """[B] int64: how many leading drafts equal the target's tokens. A draft of -1 is none: it equals no token.

    A sampled -1 (a row of logits without a finite one) may meet a draft of -1; that request ends with an error.
    """
    matches = sampled_BT.narrow(1, 0, drafts_BK.shape[1]) == drafts_BK
    return matches.cumprod(1).sum(1)


def count_proposed(drafts_BK: Tensor) -> Tensor:
    """[B] int64: how many leading drafts there are. What stands after one that is none (-1) can't be accepted."""
    return (drafts_BK >= 0).cumprod(1).sum(1)


def count_simulated(
    length: float,
    slots_B: Tensor,
    base_B: Tensor,
    logits_BTV: Tensor,
    sampled_BT: Tensor,
    drafts_BK: Tensor,
) -> tuple[Tensor, Tensor]:
    """Count as if `length` tokens per iteration came out, on average over positions, whatever the target says: for
    timing models with random weights. Returns the count and the tokens with the drafts that it keeps.

    A draft that is none, or that the mask forbids (its logit is -inf), still ends what is kept.
    """
    num_drafts = drafts_BK.shape[1]
    whole = int(length - 1)
    # Whether the fraction counts changes from row to row and, with a row's base, from one iteration to the next.
    spread_B = ((base_B * 40503 + slots_B * 9973) % 65537 * 75 % 65537).float() / 65537
    wanted_B = whole + (spread_B < (length - 1 - whole)).long()
    kept_logits_BK = logits_BTV.narrow(1, 0, num_drafts).gather(2, drafts_BK.clamp(min=0)[..., None])[..., 0]
    legal_BK = (drafts_BK >= 0) & (kept_logits_BK > float("-inf"))
    count_B = torch.minimum(wanted_B, legal_BK.cumprod(1).sum(1))
    kept_BK = torch.arange(num_drafts, device=base_B.device) < count_B[:, None]
    tokens_BK = torch.where(kept_BK, drafts_BK, sampled_BT.narrow(1, 0, num_drafts))
    return count_B, torch.cat((tokens_BK, sampled_BT.narrow(1, num_drafts, 1)), 1)
