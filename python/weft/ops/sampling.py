"""Coupled sampling: one token per row, the argmax of logits / temperature + noise.

The noise is a function of the request's seed, the position and the target token id, and of nothing else. So
a drafter that draws with it tends to draw what the target will, a draft is right when it is equal, and a seed
gives the same text whatever the drafter, the batch or the load. Since -log(-log(u)) is a Gumbel variate, the
argmax is distributed as softmax(logits / temperature).

Word token % 4 of Philox4x32-10 with the seed (low, high) as key and (position low, position high, token // 4,
PURPOSE) as counter gives u = (word + 0.5) / 2^32. The kernels compute the noise by the same unfused
single-precision operations on every device and instruction set, so equal logits give equal tokens there; the
reference below takes the logarithms in double precision, and can differ where the two best sums are closer
than 1e-5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import (
    check_cuda,
    check_logits,
    check_vector,
    device_of,
    multiprocessors,
    native_logits,
    register,
    require_cuda_kernels,
    stream_of,
)

PURPOSE = 0x77656674
"""The last counter word of sampling's noise."""

LOWEST_TEMPERATURE = 1e-5
"""A temperature below this, or NaN, is 0: the largest logit, without noise."""


def sample(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    """One token per row, [n] int64, in target ids.

    logits: [n, vocab] float32, float16 or bfloat16, or float64, which is rounded to float32; the last dimension
        contiguous, rows any distance apart. Unchanged.
    temperature: [n] float32. seed, position: [n] int64; `position` is that of the token to be drawn.
    d2t: [vocab] int64; column i stands for token i + d2t[i], at least 0 and below 2^32, and draws with that
        token's noise.
    floor: [n] float32, as truncation_floor gives it: a logit below its row's floor can't be drawn.
    A row whose logits are all -inf or NaN gives -1: no token. A NaN never wins. Among equal sums that of the
    lowest token id wins.
    """
    if logits.dtype is torch.float64:
        logits = logits.float()
    token: Tensor = _SAMPLE(logits, temperature, seed, position, d2t, floor)
    return token


def sample_reference(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    """The same in plain torch, a few hundred times slower."""
    tokens_V = torch.arange(logits.shape[1], device=logits.device) + (0 if d2t is None else d2t)
    is_greedy_N1 = ~(temperature >= LOWEST_TEMPERATURE)[:, None]
    if floor is not None:
        logits = logits.masked_fill(logits.float() < floor[:, None], float("-inf"))
    scaled_NV = logits.float() / temperature[:, None].where(~is_greedy_N1, 1.0)
    noise_NV = gumbel_noise_reference(noise_words_reference(seed, position, tokens_V))
    sums_NV = scaled_NV + noise_NV.where(~is_greedy_N1, 0.0)
    sums_NV = sums_NV.masked_fill(sums_NV.isnan(), float("-inf"))
    best_N1 = sums_NV.amax(1, keepdim=True)
    token_N = torch.where(sums_NV == best_N1, tokens_V, 2**62).amin(1)
    return token_N.where(best_N1[:, 0] > float("-inf"), -1)


def noise_words_reference(seed: Tensor, position: Tensor, tokens: Tensor) -> Tensor:
    """The Philox words [n, v] behind the noise of `tokens` [v] for each (seed, position), both [n]."""
    group_V = tokens // 4
    counter = [
        (position & _LOW)[:, None],
        (position >> 32 & _LOW)[:, None],
        group_V[None],
        torch.full_like(group_V, PURPOSE)[None],
    ]
    key = [(seed & _LOW)[:, None], (seed >> 32 & _LOW)[:, None]]
    shape = (len(seed), len(tokens))
    words_NV4 = philox_words_reference(
        torch.stack([c.expand(shape) for c in counter], -1), torch.stack([k.expand(shape) for k in key], -1)
    )
    return words_NV4.gather(-1, (tokens % 4).expand(shape)[..., None])[..., 0]


def gumbel_noise_reference(words: Tensor) -> Tensor:
    """-log(-log(u)) as float32, for words in [0, 2^32) as int64."""
    u = (words.double() + 0.5) * 2.0**-32
    return (-(-u.log()).log()).float()


def gumbel_noise(words: Tensor) -> Tensor:
    """The kernels' noise, float32, for words in [0, 2^32) as int64: to look at it, or to test it."""
    words = words.to(device="cpu", dtype=torch.uint32).contiguous()
    out = torch.empty(words.shape, dtype=torch.float32)
    _core.gumbel_noise_cpu(words.data_ptr(), out.data_ptr(), words.numel())
    return out


_LOW = 0xFFFFFFFF


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
    """High and low word of a 64-bit product, which int64 would overflow."""
    low_part, high_part = factor * (word & 0xFFFF), factor * (word >> 16)
    return high_part + (low_part >> 16) >> 16, (high_part << 16) + low_part & _LOW


def _check_sample(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    check_logits(logits, in_place=False)
    n = logits.shape[0]
    check_vector("temperature", temperature, (torch.float32,), n, logits)
    check_vector("seed", seed, (torch.int64,), n, logits)
    check_vector("position", position, (torch.int64,), n, logits)
    if d2t is not None:
        check_vector("d2t", d2t, (torch.int64,), logits.shape[1], logits)
    if floor is not None:
        check_vector("floor", floor, (torch.float32,), n, logits)
    return logits.new_empty(n, dtype=torch.int64)


def _arguments(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None,
    floor: Tensor | None,
    out: Tensor,
) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:
    return (
        *native_logits(logits),
        temperature.data_ptr(),
        seed.data_ptr(),
        position.data_ptr(),
        0 if d2t is None else d2t.data_ptr(),
        0 if floor is None else floor.data_ptr(),
        out.data_ptr(),
    )


def _sample_cpu(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    out = _check_sample(logits, temperature, seed, position, d2t, floor)
    _core.sample_cpu(
        *_arguments(logits, temperature, seed, position, d2t, floor, out), torch.get_num_threads()
    )
    return out


def _sample_cuda(
    logits: Tensor,
    temperature: Tensor,
    seed: Tensor,
    position: Tensor,
    d2t: Tensor | None = None,
    floor: Tensor | None = None,
) -> Tensor:
    require_cuda_kernels()
    out = _check_sample(logits, temperature, seed, position, d2t, floor)
    arguments = _arguments(logits, temperature, seed, position, d2t, floor, out)
    sms = multiprocessors(logits.get_device())
    splits = _core.sample_splits_cuda(logits.shape[0], logits.shape[1], sms)
    workspace = logits.new_empty(logits.shape[0] * splits, dtype=torch.int64)
    with device_of(logits):
        check_cuda(_core.sample_cuda(*arguments, sms, workspace.data_ptr(), stream_of(logits)))
    return out


_SAMPLE = register(
    "sample(Tensor logits, Tensor temperature, Tensor seed, Tensor position, Tensor? d2t=None,"
    " Tensor? floor=None) -> Tensor",
    cpu=_sample_cpu,
    cuda=_sample_cuda,
    fake=_check_sample,
)
