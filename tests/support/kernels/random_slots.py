"""Slots with random sampling parameters, some of them neutral, and random rows of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.slots import SlotParams

INF, NAN = float("inf"), float("nan")
MOST = torch.finfo(torch.float32).max
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random_params(
    slots: int, vocab: int, seed: int = 0, bad_words: int = 12, max_length: int = 30, ends: int = 3
) -> SlotParams:
    """Each parameter is set in about half of the slots. Bad words and histories use few different tokens, so that
    they match."""
    g = torch.Generator().manual_seed(seed)
    params = SlotParams.neutral(slots, vocab, bad_words, ends, max_length, torch.device("cpu"))
    _write_draw(params, g)
    _write_penalties(params, g)
    params.ends_allowed_from[:] = torch.randint(0, max_length + 6, (slots,), generator=g)
    _, params.wants_logprobs[:], params.is_held[:] = torch.randint(0, 2, (3, slots), generator=g)
    params.max_drafts[:] = torch.randint(0, 6, (slots,), generator=g)
    params.ends.copy_(torch.randint(-1, vocab, (slots, ends), generator=g))
    return params


def _sometimes(value: Tensor, neutral: float, g: torch.Generator, share: float = 0.5) -> Tensor:
    return value.where(torch.rand(value.shape, generator=g) < share, neutral)


def _write_draw(params: SlotParams, g: torch.Generator) -> None:
    slots, vocab = params.counts.shape
    params.temperature[:] = _sometimes(torch.rand(slots, generator=g) * 2, 0.0, g, 0.8)
    params.top_p[:] = _sometimes(torch.rand(slots, generator=g), 1.0, g)
    params.min_p[:] = _sometimes(torch.rand(slots, generator=g) * 0.2, 0.0, g)
    params.seed[:] = torch.randint(-(2**62), 2**62, (slots,), generator=g)
    params.top_k[:] = _sometimes(torch.randint(-1, vocab + 2, (slots,), generator=g), 0, g)
    params.top_p_decay[:] = _sometimes(torch.rand(slots, generator=g), 1.0, g)
    params.top_p_min[:] = _sometimes(torch.rand(slots, generator=g) / 2, 0.0, g)
    params.top_p_start[:] = params.top_p
    params.top_p_reset_id[:] = torch.randint(-1, min(vocab, 3), (slots,), generator=g)


def _write_penalties(params: SlotParams, g: torch.Generator) -> None:
    slots, vocab = params.counts.shape
    few = min(vocab, 3)
    params.repetition_penalty[:] = _sometimes(torch.rand(slots, generator=g) + 0.6, 1.0, g)
    params.presence_penalty[:] = _sometimes(torch.randn(slots, generator=g), 0.0, g)
    params.frequency_penalty[:] = _sometimes(torch.randn(slots, generator=g), 0.0, g)
    params.changes_logits[:] = torch.randint(0, 4, (slots,), generator=g)
    params.bias_kind[:] = torch.randint(0, 3, (slots,), generator=g)
    params.penalties_after_temperature[:] = torch.randint(0, 2, (slots,), generator=g)
    params.no_repeat_ngram_size[:] = _sometimes(torch.randint(1, 5, (slots,), generator=g), 0, g)
    params.counts.copy_(_sometimes(torch.randint(1, 200, (slots, vocab), generator=g), 0, g, 0.1))
    params.prompt.copy_(torch.randint(-(2**31), 2**31, params.prompt.shape, generator=g))
    params.bias.copy_(_sometimes(torch.randn(slots, vocab, generator=g) * 5, 0.0, g, 0.1))
    params.bias[torch.rand(slots, vocab, generator=g) < 0.02] = -INF
    wide = params.bias_kind == 2
    far = torch.tensor([1e9, -1e9, MOST, -MOST])[torch.randint(0, 4, (slots, vocab), generator=g)]
    params.bias.copy_(far.where(wide[:, None] & (torch.rand(slots, vocab, generator=g) < 0.1), params.bias))
    params.bad_words.copy_(torch.randint(-1, few, params.bad_words.shape, generator=g))
    params.history.copy_(torch.randint(0, few, params.history.shape, generator=g))


def random_logits(rows: int, vocab: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random logits [rows, vocab], a tenth of them -inf. The rows are not contiguous, and they start at an offset."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab + 5, generator=g) * 5
    logits[torch.rand(rows, vocab + 5, generator=g) < 0.1] = -INF
    return logits.to(dtype)[:, 2 : vocab + 2]


def random_tokens(shape: tuple[int, ...], vocab: int, seed: int = 0) -> Tensor:
    """Random drafts, in which -1 is no draft. Half of the rows use few different tokens, so that they complete bad
    words."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(-1, vocab, shape, generator=g)
    few = torch.randint(-1, min(vocab, 3), shape, generator=g)
    tokens[: shape[0] // 2] = few[: shape[0] // 2]
    return tokens


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors, on any devices, are bitwise equal, including the sign of zeros and the bits of NaN."""
    a, b = (each.cpu().contiguous() for each in (a, b))
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def on_cuda(params: SlotParams) -> SlotParams:
    """Copy the tables to the GPU."""
    return SlotParams(*(each.cuda() for each in params.tensors))
