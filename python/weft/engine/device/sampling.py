"""A request's sampling parameters on their way to its slot (`ops/slots.py`), and what penalties need to know of its
text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core import SamplingParams
from weft.core.request import MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, NO_RULES, TokenRules
from weft.core.sampling import MAX_LOGIT
from weft.ops.slots import SlotParams
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime

_NO_LIMIT = torch.iinfo(torch.int32).max
_NUM_FLOATS = _NUM_INTS = 9
NUM_NUMBERS = 2 + (_NUM_FLOATS + _NUM_INTS) // 2
"""Entries of `SamplingRow.numbers`."""


@dataclass(frozen=True)
class SlotSampling:
    """How one slot samples. `max_drafts` is its request's own limit of drafts (None: as many as the engine makes).
    Where it `is_searched`, the host chooses its tokens."""

    params: SamplingParams
    seed: int = 0
    rules: TokenRules = NO_RULES
    max_drafts: int | None = None
    is_searched: bool = False


class SamplingRow:
    """One slot's sampling parameters on the host. `numbers` int64 [11] are those that every slot has: the seed, the
    position until which end tokens are blocked, nine float32 and nine int32, in the order of `SlotParams`. What few ask
    for is in pinned memory: `write_extras` copies it to the device. `answer` is what a request has said that goes on
    after a pause."""

    def __init__(
        self,
        runtime: Runtime,
        sampling: SlotSampling,
        prompt: list[int],
        vocab_size: int,
        answer: Sequence[int] = (),
    ) -> None:
        pinned = partial(pinned_copy, runtime)
        s, rules = sampling.params, sampling.rules
        bias = _dense_bias(sampling, vocab_size)
        is_penalised = s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
        changes_logits = is_penalised or bias is not None or rules.bad_words or s.no_repeat_ngram_size
        penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
        limit = sampling.max_drafts if sampling.max_drafts is not None else _NO_LIMIT
        top_p_rule = (s.top_p_decay, s.top_p_min) if s.changes_top_p else (1.0, 0.0)
        reset = s.top_p_reset_ids if s.top_p_reset_ids is not None else -1
        self.numbers = np.empty(NUM_NUMBERS, dtype=np.int64)
        self.numbers[:2] = sampling.seed, len(prompt) + s.min_tokens
        words = self.numbers[2:].view(np.int32)
        floats = words[:_NUM_FLOATS].view(np.float32)
        floats[:] = s.temperature, s.top_p, s.min_p, *penalties, *top_p_rule, s.top_p
        floats[1] = _top_p_after(floats, reset, answer)
        words[_NUM_FLOATS:] = (
            s.top_k, bool(changes_logits), _kind_of_bias(bias), limit, s.logprobs is not None, sampling.is_searched,
            rules.penalties.after_temperature, s.no_repeat_ngram_size or 0, reset,
        )  # fmt: skip
        counted = rules.penalties.counted(prompt)
        self.text = _Text(runtime, prompt, answer, counted, vocab_size) if changes_logits else None
        self.bad_words: Tensor | None = None
        self.ends: Tensor | None = None
        self.bias: Tensor | None = None
        if rules.bad_words:
            flat = [token for word in rules.bad_words for token in (*word, -1)]
            self.bad_words = pinned(flat + [-1] * (MAX_BAD_WORD_TOKENS - len(flat)), torch.int32)
        if s.min_tokens:
            self.ends = pinned([*rules.ends] + [-1] * (MAX_END_TOKENS - len(rules.ends)), torch.int32)
        if bias is not None:
            self.bias = pinned(bias, torch.float32)

    @property
    def has_extras(self) -> bool:
        """Whether there is more than numbers."""
        return self.text is not None or self.ends is not None


def _dense_bias(sampling: SlotSampling, vocab_size: int) -> Tensor | None:
    """The sum of both biases, float32 [V], finite where both are; None where there is none."""
    some, whole = sampling.params.logit_bias, sampling.rules.bias
    if not some and whole is None:
        return None
    dense = whole.float() if whole is not None else torch.zeros(vocab_size)
    forbidden = dense.isneginf()
    if some:
        added = torch.zeros(vocab_size)
        added[list(some)] = torch.tensor([float(value) for value in some.values()])
        forbidden |= added.isneginf()
        dense = dense + added
    most = torch.finfo(torch.float32).max
    return dense.clamp(-most, most).masked_fill(forbidden, -math.inf)


def _kind_of_bias(bias: Tensor | None) -> int:
    """0 for none, 2 for one beyond what noise can be added to."""
    if bias is None:
        return 0
    return 2 if bool((bias.abs().masked_fill(bias.isneginf(), 0) > MAX_LOGIT).any()) else 1


def _top_p_after(floats: NDArray[np.float32], reset: int, answer: Sequence[int]) -> float:
    """What top-p is after an answer, in the device's arithmetic."""
    top_p, decay, least, first = floats[1], *floats[6:9]
    if decay == 1 and least <= 0:
        return float(first)
    for token in answer:
        top_p = first if token == reset else max(top_p * decay, least)
    return float(top_p)


class _Text:
    """What penalties need to know of a text: its tokens in order, which the prompt has as bits, and how often the
    answer, and of the prompt what is `counted`, have each."""

    def __init__(
        self,
        runtime: Runtime,
        prompt: list[int],
        answer: Sequence[int],
        counted: Sequence[int],
        vocab_size: int,
    ) -> None:
        bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
        bits[prompt] = 1
        words = np.packbits(bits, bitorder="little").view(np.int32)
        self.tokens = pinned_copy(runtime, [*prompt, *answer], torch.int32)
        self.bits = pinned_copy(runtime, words, torch.int32)
        self.counts: Tensor | None = None
        if answer or counted:
            counts = torch.bincount(torch.tensor([*counted, *answer]), minlength=vocab_size)
            self.counts = pinned_copy(runtime, counts, torch.int32)


def write_numbers(params: SlotParams, numbers: Tensor, slots: Tensor) -> None:
    """Write `SamplingRow.numbers` int64 [n, 11] to slots int64 [n]. A device function."""
    params.longs.index_copy_(1, slots, numbers[:, :2].t())
    words = numbers[:, 2:].view(torch.int32)
    params.floats.index_copy_(1, slots, words[:, :_NUM_FLOATS].view(torch.float32).t())
    params.ints.index_copy_(1, slots, words[:, _NUM_FLOATS:].t())


def write_extras(params: SlotParams, row: SamplingRow, slot: int) -> None:
    """Write what few requests ask for to `slot`, whose text so far is the request's prompt. A device function."""
    if row.ends is not None:
        params.ends[slot].copy_(row.ends, non_blocking=True)
    if row.text is None:
        return
    if row.text.counts is None:
        params.counts[slot].zero_()
    else:
        params.counts[slot].copy_(row.text.counts, non_blocking=True)
    params.prompt[slot].copy_(row.text.bits, non_blocking=True)
    params.history[slot, : row.text.tokens.shape[0]].copy_(row.text.tokens, non_blocking=True)
    if row.bad_words is None:
        params.bad_words[slot].fill_(-1)
    else:
        params.bad_words[slot].copy_(row.bad_words, non_blocking=True)
    if row.bias is not None:
        params.bias[slot].copy_(row.bias, non_blocking=True)
