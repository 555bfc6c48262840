"""Packs a request's sampling parameters in the format of a slot (`ops/slots.py`): one record and, for few requests,
tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core import SamplingParams
from weft.core.request import MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, NO_RULES, TokenRules
from weft.core.sampling import CHANGES_LOGITS, MAX_LOGIT
from weft.core.values import set_fields
from weft.ops.slots import BiasKind, SlotParams, SlotRecord
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime

_NO_LIMIT = torch.iinfo(torch.int32).max
# Not the seed: each sequence of a request has another.
_SAME_FIELDS = {field.name for field in fields(SamplingParams)} & set(SlotRecord.fields()) - {"seed"}
"""The parameters that the record has under the same name. It keeps its neutral value for None."""


class SlotSampling:
    """A request's sampling parameters, packed on the host for its slots.

    record: int64 [RECORD_WORDS], the bytes of a `SlotRecord`; every slot has one.
    text, bad_words, ends, bias: the tables, which few requests need. They are in pinned memory; `write_tables` copies
        them to the device.

    Arguments:
    prompt, answer: the tokens so far. `answer` is empty unless the sequence resumes after preemption.
    max_drafts: the request's own limit on drafts; None for the engine's.
    is_searched: whether a beam search on the host chooses the tokens.
    """

    def __init__(
        self,
        runtime: Runtime,
        params: SamplingParams,
        prompt: list[int],
        vocab_size: int,
        *,
        answer: Sequence[int] = (),
        seed: int = 0,
        rules: TokenRules = NO_RULES,
        max_drafts: int | None = None,
        is_searched: bool = False,
    ) -> None:
        pinned = partial(pinned_copy, runtime)
        bias = _total_bias(params, rules, vocab_size)
        changes_logits = bool(bias is not None or rules.bad_words or set_fields(params, CHANGES_LOGITS))
        record = SlotRecord()
        for name in _SAME_FIELDS:
            value = getattr(params, name)
            if value is not None:
                setattr(record, name, value)
        record.seed = seed
        record.ends_allowed_from = len(prompt) + params.min_tokens
        record.top_p_start = params.top_p
        if not params.changes_top_p:
            record.top_p_min = 0  # the record's way to say that top_p stays
        if params.top_p_reset_ids is not None:
            record.top_p_reset_id = params.top_p_reset_ids
        record.top_p = record.top_p_after(answer)
        record.penalties_after_temperature = rules.penalties.after_temperature
        record.bias_kind = _kind_of_bias(bias)
        record.changes_logits = changes_logits
        record.max_drafts = _NO_LIMIT if max_drafts is None else max_drafts
        record.wants_logprobs = params.logprobs is not None
        record.is_held = is_searched
        self.record: NDArray[np.int64] = np.frombuffer(bytearray(bytes(record)), dtype=np.int64)
        counted = rules.penalties.counted(prompt)
        self.text = _Text(runtime, prompt, answer, counted, vocab_size) if changes_logits else None
        self.bad_words: Tensor | None = None
        self.ends: Tensor | None = None
        self.bias: Tensor | None = None
        if rules.bad_words:
            flat = [token for word in rules.bad_words for token in (*word, -1)]
            self.bad_words = pinned(flat + [-1] * (MAX_BAD_WORD_TOKENS - len(flat)), torch.int32)
        if params.min_tokens:
            self.ends = pinned([*rules.ends] + [-1] * (MAX_END_TOKENS - len(rules.ends)), torch.int32)
        if bias is not None:
            self.bias = pinned(bias, torch.float32)

    @property
    def has_tables(self) -> bool:
        """Whether the request needs tables besides the record."""
        return self.text is not None or self.ends is not None


def _total_bias(params: SamplingParams, rules: TokenRules, vocab_size: int) -> Tensor | None:
    """The sum of `logit_bias` and the rules' bias, float32 [V]; None if the request has neither. A token that one of
    them forbids gets -inf. All other sums are clamped to finite values."""
    by_token, dense = params.logit_bias, rules.bias
    if not by_token and dense is None:
        return None
    total = dense.float() if dense is not None else torch.zeros(vocab_size)
    forbidden = total.isneginf()
    if by_token:
        added = torch.zeros(vocab_size)
        added[list(by_token)] = torch.tensor([float(value) for value in by_token.values()])
        forbidden |= added.isneginf()
        total = total + added
    limit = torch.finfo(torch.float32).max
    return total.clamp(-limit, limit).masked_fill(forbidden, -math.inf)


def _kind_of_bias(bias: Tensor | None) -> BiasKind:
    if bias is None:
        return BiasKind.NONE
    is_wide = bool((bias.abs().masked_fill(bias.isneginf(), 0) > MAX_LOGIT).any())
    return BiasKind.WIDE if is_wide else BiasKind.PLAIN


class _Text:
    """The tables of a text that penalties read.

    tokens: int32 [n], the prompt and the answer.
    bits: int32 [ceil(V / 32)], a bit set of the tokens that occur in the prompt.
    counts: int32 [V], the occurrences of each token in the answer and in the `counted` part of the prompt; None if all
        are zero.
    """

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


def write_tables(params: SlotParams, sampling: SlotSampling, slot: int) -> None:
    """Copy a request's tables to the tables of `slot`, asynchronously. A device function."""
    if sampling.ends is not None:
        params.ends[slot].copy_(sampling.ends, non_blocking=True)
    if sampling.text is None:
        return
    if sampling.text.counts is None:
        params.counts[slot].zero_()
    else:
        params.counts[slot].copy_(sampling.text.counts, non_blocking=True)
    params.prompt[slot].copy_(sampling.text.bits, non_blocking=True)
    params.history[slot, : sampling.text.tokens.shape[0]].copy_(sampling.text.tokens, non_blocking=True)
    if sampling.bad_words is None:
        params.bad_words[slot].fill_(-1)
    else:
        params.bad_words[slot].copy_(sampling.bad_words, non_blocking=True)
    if sampling.bias is not None:
        params.bias[slot].copy_(sampling.bias, non_blocking=True)
