"""Log-probabilities of the drawn token and of the most probable tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.library import require

NEG_INF = float("-inf")


def log_probs(logits: Tensor, token: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Log-softmax of `logits` in float32: values float32 [n, 1 + top] and token ids int64 [n, 1 + top].

    logits: [n, vocab] of any float dtype. token: [n] int64, columns of `logits` or -1. top: at most vocab, else raises
        InputError.
    Column 0 holds the value of `token`, -inf for token -1. The other columns hold the `top` largest values in
    descending order. A NaN counts as -inf. A row of only NaN and -inf gives -inf everywhere.
    """
    vocab = logits.shape[1]
    require(top <= vocab, f"the {top} most probable tokens were asked for; the vocabulary has {vocab}")
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    total_N1 = x_NV.logsumexp(1, keepdim=True)
    total_N1 = total_N1.masked_fill(total_N1 == NEG_INF, 0)  # avoids -inf - -inf, which is NaN
    token_N1 = token[:, None]
    drawn_N1 = x_NV.gather(1, token_N1.clamp(min=0)).masked_fill(token_N1 < 0, NEG_INF)
    top_NK, ids_NK = x_NV.topk(top, 1)
    return torch.cat((drawn_N1, top_NK), 1) - total_N1, torch.cat((token_N1, ids_NK), 1)


def scaled(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """Logits / temperature up to a constant per row, float32 [n, vocab]. Tokens less than `min_p` times as likely as
    the most likely one get -inf.

    temperature: [n] float32, above 0. min_p: [n] float32; 0 removes no token.
    """
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    x_NV = x_NV - _finite(x_NV.amax(1, keepdim=True))  # no overflow for small temperatures
    x_NV = x_NV / temperature[:, None]
    return x_NV.masked_fill(x_NV < min_p.log()[:, None], NEG_INF)


def _finite(top_N1: Tensor) -> Tensor:
    return torch.where(top_N1.isfinite(), top_N1, 0.0)


def log_probs_within(
    logits: Tensor, token: Tensor, top: int, top_k: Tensor, max_top_k: int
) -> tuple[Tensor, Tensor]:
    """`log_probs` of the distribution over the `top_k` largest logits of each row and all ties with the last of them.
    The values of other tokens are -inf.

    top_k: [n] integers. A value below 1, or of at least the vocabulary's size, keeps all tokens.
    max_top_k: at least the largest other value in `top_k`.
    """
    vocab = logits.shape[1]
    max_top_k = min(max_top_k, vocab)
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    kth_N1 = x_NV.topk(max_top_k, 1).values.gather(1, (top_k.long() - 1).clamp(0, max_top_k - 1)[:, None])
    is_cut_N1 = ((top_k > 0) & (top_k < vocab))[:, None]
    return log_probs(x_NV.masked_fill(is_cut_N1 & (x_NV < kth_N1), NEG_INF), token, top)


def allowed_tokens(masked: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The number of allowed tokens in each row, int64 [n], and whether each of `ids` is allowed, bool [n, k].

    masked: [n, vocab] of any float dtype, -inf or NaN for tokens that are not allowed. ids: [n, k] int64.
    """
    allowed_NV = masked > NEG_INF
    return allowed_NV.sum(1), allowed_NV.gather(1, ids)
