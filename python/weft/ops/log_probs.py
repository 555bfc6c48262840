"""Log-probabilities of the token that was drawn and of the most probable ones."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.library import require

NEG_INF = float("-inf")


def log_probs(logits: Tensor, token: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Values [n, 1 + top] float32 and ids [n, 1 + top] int64: log-softmax of `logits`, in float32.

    logits: [n, vocab] of any float dtype. token: [n] int64, in columns of `logits`. top: at most vocab;
        more raises InputError.
    Column 0 is the token's, -inf where that is -1; the rest are the `top` largest in descending order. A NaN has
    no probability, and a row without any gives -inf everywhere.
    """
    vocab = logits.shape[1]
    require(top <= vocab, f"the {top} most probable tokens were asked for; the vocabulary has {vocab}")
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    total_N1 = x_NV.logsumexp(1, keepdim=True)
    total_N1 = total_N1.masked_fill(total_N1 == NEG_INF, 0)  # less than nothing is nothing, and not NaN
    token_N1 = token[:, None]
    drawn_N1 = x_NV.gather(1, token_N1.clamp(min=0)).masked_fill(token_N1 < 0, NEG_INF)
    most_NK, ids_NK = x_NV.topk(top, 1)
    return torch.cat((drawn_N1, most_NK), 1) - total_N1, torch.cat((token_N1, ids_NK), 1)


def scaled(logits: Tensor, temperature: Tensor, min_p: Tensor) -> Tensor:
    """[n, vocab] float32: logits / temperature, and -inf for tokens less than `min_p` times as likely as the likeliest.
    temperature, above 0, and min_p, of which 0 cuts nothing: [n] float32."""
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    x_NV = x_NV - _finite(x_NV.amax(1, keepdim=True))  # so that no temperature makes it infinite
    x_NV = x_NV / temperature[:, None]
    return x_NV.masked_fill(x_NV < min_p.log()[:, None], NEG_INF)


def _finite(top_N1: Tensor) -> Tensor:
    return torch.where(top_N1.isfinite(), top_N1, 0.0)


def log_probs_within(
    logits: Tensor, token: Tensor, top: int, top_k: Tensor, most: int
) -> tuple[Tensor, Tensor]:
    """The same of a distribution over the `top_k` largest logits of each row, ties with the last of them included: of
    the others the logarithm is -inf.

    top_k: [n] integers; below 1, or as many as the vocabulary has or more, are all. most: at least as many as the
    largest of those that are fewer.
    """
    vocab = logits.shape[1]
    most = min(most, vocab)
    x_NV = logits.float().nan_to_num(nan=NEG_INF, posinf=float("inf"), neginf=NEG_INF)
    kth_N1 = x_NV.topk(most, 1).values.gather(1, (top_k.long() - 1).clamp(0, most - 1)[:, None])
    is_cut_N1 = ((top_k > 0) & (top_k < vocab))[:, None]
    return log_probs(x_NV.masked_fill(is_cut_N1 & (x_NV < kth_N1), NEG_INF), token, top)


def note_allowed_(ids: Tensor, masked: Tensor) -> None:
    """Write into the ids of `log_probs` what could be drawn: column 0 is how many tokens, and an id after it that could
    not be drawn becomes -1 - id.

    ids: [n, 1 + top] int64. masked: [n, vocab] of any float dtype, -inf (or NaN) where a token can't be drawn.
    """
    allowed_NV = masked > NEG_INF
    names_NK = ids[:, 1:]
    names_NK.copy_(torch.where(allowed_NV.gather(1, names_NK), names_NK, -1 - names_NK))
    ids[:, 0] = allowed_NV.sum(1)
