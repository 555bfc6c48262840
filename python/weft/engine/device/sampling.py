"""A request's sampling parameters on their way to its slot (`ops/slots.py`), and what penalties need to know of its
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from weft.core import SamplingParams
from weft.errors import InputError
from weft.ops.slots import SlotParams
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime

MAX_BAD_WORD_TOKENS = 1024
MAX_END_TOKENS = 64
_NO_LIMIT = torch.iinfo(torch.int32).max


@dataclass(frozen=True)
class TokenRules:
    """What a request's sampling parameters say in token ids: `bad_words`, none of which may be completed, and `ends`,
    which may not come before `min_tokens` are out. `bias` float32 [V] is added to the logits, with `logit_bias`. Raises
    `InputError` for more than a slot holds."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    ends: tuple[int, ...] = ()
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        needed = sum(len(word) + 1 for word in self.bad_words)
        if needed > MAX_BAD_WORD_TOKENS:
            raise InputError(
                f"bad_words take {needed} tokens or more, with one for each word's end; there is room for "
                f"{MAX_BAD_WORD_TOKENS}"
            )
        if len(self.ends) > MAX_END_TOKENS:
            raise InputError(
                f"there are {len(self.ends)} end and stop token ids; there is room for {MAX_END_TOKENS}"
            )


NO_RULES = TokenRules()


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
    """One slot's sampling parameters on the host. `numbers` int64 [8] are those that every slot has: the seed, the
    position until which end tokens are blocked, six float32 and six int32, in the order of `SlotParams`. What few ask
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
        bias, has_bias = dict(s.logit_bias or {}), bool(s.logit_bias) or rules.bias is not None
        is_penalised = s.repetition_penalty != 1 or s.presence_penalty != 0 or s.frequency_penalty != 0
        changes_logits = bool(is_penalised or has_bias or rules.bad_words)
        penalties = (s.repetition_penalty, s.presence_penalty, s.frequency_penalty)
        limit = sampling.max_drafts if sampling.max_drafts is not None else _NO_LIMIT
        numbers = np.empty(8, dtype=np.int64)
        numbers[:2] = sampling.seed, len(prompt) + s.min_tokens
        numbers[2:5].view(np.float32)[:] = s.temperature, s.top_p, s.min_p, *penalties
        wants = s.logprobs is not None, sampling.is_searched
        numbers[5:].view(np.int32)[:] = s.top_k, changes_logits, has_bias, limit, *wants
        self.numbers = numbers
        self.text = _Text(runtime, prompt, answer, vocab_size) if changes_logits else None
        self.bad_words: Tensor | None = None
        self.ends: Tensor | None = None
        self.bias: Tensor | None = None
        if rules.bad_words:
            words = [token for word in rules.bad_words for token in (*word, -1)]
            self.bad_words = pinned(words + [-1] * (MAX_BAD_WORD_TOKENS - len(words)), torch.int32)
        if s.min_tokens:
            self.ends = pinned([*rules.ends] + [-1] * (MAX_END_TOKENS - len(rules.ends)), torch.int32)
        if has_bias:
            dense = rules.bias.clone() if rules.bias is not None else torch.zeros(vocab_size)
            dense[list(bias)] += torch.tensor([float(value) for value in bias.values()])
            self.bias = pinned(dense, torch.float32)

    @property
    def has_extras(self) -> bool:
        """Whether there is more than numbers."""
        return self.text is not None or self.ends is not None


class _Text:
    """What penalties need to know of a text: its tokens in order, which the prompt has as bits, and how often the
    answer has each."""

    def __init__(self, runtime: Runtime, prompt: list[int], answer: Sequence[int], vocab_size: int) -> None:
        bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
        bits[prompt] = 1
        words = np.packbits(bits, bitorder="little").view(np.int32)
        self.tokens = pinned_copy(runtime, [*prompt, *answer], torch.int32)
        self.bits = pinned_copy(runtime, words, torch.int32)
        self.counts: Tensor | None = None
        if answer:
            counts = torch.bincount(torch.tensor(answer), minlength=vocab_size)
            self.counts = pinned_copy(runtime, counts, torch.int32)


def write_numbers(params: SlotParams, numbers: Tensor, slots: Tensor) -> None:
    """Write `SamplingRow.numbers` int64 [n, 8] to slots int64 [n]. A device function."""
    params.longs.index_copy_(1, slots, numbers[:, :2].t())
    words = numbers[:, 2:].view(torch.int32)
    params.floats.index_copy_(1, slots, words[:, :6].view(torch.float32).t())
    params.ints.index_copy_(1, slots, words[:, 6:].t())


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
