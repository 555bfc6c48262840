"""Verification: sample the target at every drafted position and keep the drafts that it would have chosen itself.

Sampling is coupled (`ops/sampling.py`): the target's token at a position is a function of its logits, the request's
seed and the position, and a draft is kept when it is that token. So what is committed is what decoding without
speculation would have sampled, whatever the drafter proposed.
"""

from __future__ import annotations

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
