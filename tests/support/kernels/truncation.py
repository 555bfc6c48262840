"""Truncation in plain torch, by sorting in double precision: the logits of a row that may be drawn.

The kernels sum probabilities as integers. If a limit is within 1e-6 of such a sum, rounding decides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from support.kernels.sampling import LOWEST_TEMPERATURE


def truncation_floor_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Return the floor of each row, [n] float32. Logits of at least the floor stay. -inf if nothing is cut.

    logits: [n, vocab]; -inf and NaN never count. temperature, top_p, min_p: [n] float32; top_k: [n] int32. A greedy
    row is not cut, and the largest logit always stays.
    - top_k: the k largest stay, and those equal to the k-th. <= 0 or >= vocab cuts nothing.
    - top_p: of the logits that top-k left, the largest stay until the sum of their probabilities is at least p. The
      one that reaches it stays too, with its equals. >= 1 cuts nothing, and <= 0 leaves only the largest.
    - min_p: tokens with at least min_p times the largest probability stay. <= 0 cuts nothing, >= 1 leaves only the
      largest.
    """
    vocab = logits.shape[1]
    x_NV = logits.double().masked_fill(logits.isnan(), float("-inf")).sort(1, descending=True).values
    greedy_N = ~(temperature >= LOWEST_TEMPERATURE)
    scaled_NV = x_NV / temperature.double()[:, None].where(~greedy_N[:, None], 1.0)
    rank_V = torch.arange(vocab, device=logits.device)

    k_N = top_k.long().where((top_k > 0) & (top_k < vocab), vocab)
    kth_N1 = x_NV.gather(1, k_N[:, None] - 1)
    kept_NV = x_NV >= kth_N1

    share_NV = scaled_NV.masked_fill(~kept_NV, float("-inf")).softmax(1).nan_to_num(0)
    before_NV = share_NV.cumsum(1) - share_NV
    reached_NV = (before_NV < top_p.double()[:, None]) | (rank_V == 0)
    kept_NV &= reached_NV | ~(top_p < 1)[:, None]

    ratio_NV = (scaled_NV - scaled_NV[:, :1]).nan_to_num(float("-inf")).exp()
    likely_NV = ratio_NV >= min_p.double().clamp(max=1)[:, None]
    kept_NV &= likely_NV | (rank_V == 0) | ~(min_p > 0)[:, None]

    floor_N = x_NV.where(kept_NV, float("inf")).amin(1).float()
    cuts_N = (k_N < vocab) | (top_p < 1) | (min_p > 0)
    return floor_N.where(cuts_N & ~greedy_N & (x_NV[:, 0] > float("-inf")), float("-inf"))
