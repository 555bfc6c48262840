"""Coupled sampling in plain torch, a few hundred times slower than the kernels.

The noise is that of `csrc/kernels/sampling/gumbel.h`, with logarithms in double precision. So tokens can differ from
the kernels' if the two best sums are closer than 1e-5.
"""

from __future__ import annotations

import torch
from torch import Tensor

PURPOSE = 0x77656674
"""The last counter word of the noise for sampling."""
LOWEST_TEMPERATURE = 1e-5
"""A temperature below this, or NaN, counts as 0: the largest logit wins, without noise."""
_LOW = 0xFFFFFFFF


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    """Draw one token per row, [n] int64, in target ids. -1 if every logit is -inf or NaN. The lowest id wins a tie.

    logits: [n, vocab]. temperature, floor: [n] float32; a logit below its row's floor can't be drawn. seed,
    position: [n] int64; `position` is that of the drawn token. d2t: [vocab] int64; column c is token c + d2t[c].
    """
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    sums_NV = sums_reference(logits, temperature, seed, position, d2t, floor)
    best_N1 = sums_NV.amax(1, keepdim=True)
    token_N = torch.where(sums_NV == best_N1, tokens_V, 2**62).amin(1)
    return token_N.where(best_N1[:, 0] > float("-inf"), -1)


def sums_reference(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    """The sums of logits and noise whose argmax is the token, [n, vocab] float32. -inf for tokens that can't be
    drawn."""
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    is_greedy_N1 = ~(temperature >= LOWEST_TEMPERATURE)[:, None]
    if floor is not None:
        logits = logits.masked_fill(logits.float() < floor[:, None], float("-inf"))
    scaled_NV = logits.float() / temperature[:, None].where(~is_greedy_N1, 1.0)
    noise_NV = gumbel_noise_reference(noise_words_reference(seed, position, tokens_V))
    sums_NV = scaled_NV + noise_NV.where(~is_greedy_N1, 0.0)
    return sums_NV.masked_fill(sums_NV.isnan(), float("-inf"))


def noise_words_reference(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """The Philox words [n, v] for the noise of `tokens` [v] for each (seed, position), both [n]."""
    group_G, group_of_V = torch.unique(tokens // 4, return_inverse=True)
    counter = [
        (position & _LOW)[:, None],
        (position >> 32 & _LOW)[:, None],
        group_G[None],
        torch.full_like(group_G, PURPOSE)[None],
    ]
    key = [(seed & _LOW)[:, None], (seed >> 32 & _LOW)[:, None]]
    shape = (len(seed), len(group_G))
    words_NG4 = philox_words_reference(
        torch.stack([c.expand(shape) for c in counter], -1), torch.stack([k.expand(shape) for k in key], -1)
    )
    return words_NG4[:, group_of_V, tokens % 4]


def gumbel_noise_reference(words: Tensor) -> Tensor:
    """-log(-log(u)) as float32, u = (word + 0.5) / 2^32, for words in [0, 2^32) as int64."""
    u = (words.double() + 0.5) * 2.0**-32
    return (-(-u.log()).log()).float()


def philox_words_reference(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10 (Salmon et al., SC 2011): counter [..., 4], key [..., 2] -> [..., 4], words as int64."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key.unbind(-1)
    for _ in range(10):
        high0, low0 = _multiply(0xD2511F53, c0)
        high1, low1 = _multiply(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & _LOW, k1 + 0xBB67AE85 & _LOW
    return torch.stack([c0, c1, c2, c3], -1)


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """The high and low word of a 64-bit product, which would overflow int64."""
    low_part, high_part = factor * (word & 0xFFFF), factor * (word >> 16)
    return high_part + (low_part >> 16) >> 16, (high_part << 16) + low_part & _LOW
