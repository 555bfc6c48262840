"""Truncation: which logits of a row may be drawn at all, as a floor below which none may.

Top-k, top-p and min-p are each a threshold on the logit, so together they are one number a row, and `sample` takes
it: the logits are not changed, sorted or copied. Probabilities are summed as integers, units of 2^-40 of the
largest one, so a row's floor does not depend on the batch, the order of summation, the instruction set or the
device; where it falls on a tie in exact arithmetic, or within 1e-6 of one, rounding decides, everywhere alike.
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
    native_logits,
    register,
    require,
    require_cuda_kernels,
    stream_of,
)
from weft.ops.sampling import LOWEST_TEMPERATURE

MOST_COLUMNS = 2**23
"""The largest vocabulary, so that the sum of a row's masses fits 64 bits."""


def truncation_floor(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The floor of each row, [n] float32: a logit stays where it is at least that. -inf where nothing is cut.

    logits: [n, vocab] float32, float16 or bfloat16; the last dimension contiguous, rows any distance apart; vocab
        at most 2^23. Unchanged. -inf and NaN never count.
    temperature: [n] float32; a row that is greedy, below LOWEST_TEMPERATURE or NaN, is not cut.
    top_k: [n] int32; the k largest logits stay, and those equal to the k-th. <= 0 or >= vocab cuts nothing.
    top_p: [n] float32; of what top-k left, with probabilities softmax(logits / temperature) of these, the largest
        stay until their sum is at least p, the one that reaches it and its equals included. >= 1 cuts nothing, and
        <= 0 leaves the largest alone.
    min_p: [n] float32; those with a probability of at least m times the largest stay. <= 0 cuts nothing, and
        >= 1 leaves the largest alone.
    The largest logit always stays. Rows that ask for nothing cost nothing. Raises InputError for tensors that are
    not as above, and InterfaceError for CUDA tensors in a build without CUDA.
    """
    floor: Tensor = _FLOOR(logits, temperature, top_k, top_p, min_p)
    return floor


def truncation_floor_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """The same in plain torch, by sorting, in double precision."""
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


def _check_floor(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    check_logits(logits, in_place=False)
    n, vocab = logits.shape
    require(vocab <= MOST_COLUMNS, f"logits have {vocab} columns; at most {MOST_COLUMNS} can be truncated")
    check_vector("temperature", temperature, (torch.float32,), n, logits)
    check_vector("top_k", top_k, (torch.int32,), n, logits)
    check_vector("top_p", top_p, (torch.float32,), n, logits)
    check_vector("min_p", min_p, (torch.float32,), n, logits)
    return torch.empty_like(temperature)


def _arguments(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, floor: Tensor
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    return (
        *native_logits(logits),
        temperature.data_ptr(),
        top_k.data_ptr(),
        top_p.data_ptr(),
        min_p.data_ptr(),
        floor.data_ptr(),
    )


def _floor_cpu(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    floor = _check_floor(logits, temperature, top_k, top_p, min_p)
    _core.truncation_floor_cpu(
        *_arguments(logits, temperature, top_k, top_p, min_p, floor), torch.get_num_threads()
    )
    return floor


def _floor_cuda(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    require_cuda_kernels()
    floor = _check_floor(logits, temperature, top_k, top_p, min_p)
    arguments = _arguments(logits, temperature, top_k, top_p, min_p, floor)
    with device_of(logits):
        check_cuda(_core.truncation_floor_cuda(*arguments, stream_of(logits)))
    return floor


_FLOOR = register(
    "truncation_floor(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor",
    cpu=_floor_cpu,
    cuda=_floor_cuda,
    fake=_check_floor,
)
