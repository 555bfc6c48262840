"""The sampling reference: transformers' logits, then every parameter in turn, in plain torch.

It follows the documentation of `SamplingParams`, with sorting and dictionaries in place of weft's kernels. The noise
is that of `support/kernels/sampling.py` in double precision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import xgrammar as xgr
from torch import Tensor

from support.engine.oracle import Reference
from support.kernels.penalties import repeating_tokens, trtllm_reference
from support.kernels.sampling import gumbel_noise_reference, noise_words_reference
from weft import SamplingParams
from weft.core.request import PenaltyRule

BOUNDARY = 1e-4
"""If a probability is this close to a truncation limit, the token may be kept or cut."""


@dataclass
class Words:
    """Bad words as token ids."""

    sequences: Sequence[tuple[int, ...]] = ()


def penalise(
    logits: Tensor, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> Tensor:
    """Apply penalties and bias to logits [V] float32."""
    logits = logits.clone()
    for token in {*prompt, *answer}:
        value = float(logits[token])
        r = sampling.repetition_penalty
        logits[token] = value / r if value > 0 else value * r
    for token, count in Counter(answer).items():
        logits[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    for token, bias in (sampling.logit_bias or {}).items():
        logits[token] += bias
    return logits


def penalise_by_rule(
    logits: Tensor, sampling: SamplingParams, prompt: Sequence[int], answer: Sequence[int], rule: PenaltyRule
) -> Tensor:
    """Apply TensorRT-LLM's penalties. `rule` gives the number of prompt tokens that they ignore. Returns logits
    before the division by the temperature."""
    bias = torch.zeros(len(logits))
    for token, value in (sampling.logit_bias or {}).items():
        bias[token] = value
    penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
    heat = sampling.temperature or 1.0
    ignored = rule.prompt_ignore_length
    return (trtllm_reference(logits, heat, penalties, bias, [*prompt], [*answer], ignored) * heat).float()


def top_p_at(sampling: SamplingParams, answer: Sequence[int]) -> float:
    """Return top-p after an answer, with decay, minimum and reset."""
    top_p = sampling.top_p
    for token in answer if (sampling.top_p_decay, sampling.top_p_min) != (1, 1e-6) else ():
        again = token == sampling.top_p_reset_ids
        top_p = sampling.top_p if again else max(top_p * sampling.top_p_decay, sampling.top_p_min)
    return top_p


def forbid(logits: Tensor, words: Words, context: Sequence[int]) -> Tensor:
    """Forbid the last token of each bad word whose other tokens end the context."""
    logits = logits.clone()
    for *beginning, last in words.sequences:
        if list(context[len(context) - len(beginning) :]) == beginning:
            logits[last] = -math.inf
    return logits


def truncate(logits: Tensor, sampling: SamplingParams) -> tuple[Tensor, float]:
    """Apply top-k, top-p and min-p. Also returns the distance of the closest probability from a limit."""
    shares = (logits.double() / sampling.temperature).softmax(0)
    order = shares.argsort(descending=True, stable=True).tolist()
    near = math.inf
    if sampling.top_k:
        least = shares[order[min(sampling.top_k, len(order)) - 1]]
        order = [i for i in order if shares[i] >= least]
    if sampling.top_p < 1:
        whole, total, kept = float(shares[order].sum()), 0.0, []
        for i in order:
            near = min(near, abs(total / whole - sampling.top_p))
            if total / whole >= sampling.top_p and shares[i] < shares[kept[-1]]:
                break
            kept.append(i)
            total += float(shares[i])
        near = min(near, abs(total / whole - sampling.top_p))
        order = kept
    if sampling.min_p:
        limit = sampling.min_p * float(shares.max())
        near = min(near, *(abs(float(shares[i]) - limit) for i in order))
        order = [i for i in order if shares[i] >= limit]
    out = torch.full_like(logits, -math.inf)
    out[order] = logits[order]
    return out, near


def choose(
    logits: Tensor,
    matcher: xgr.GrammarMatcher | None,
    mask: Tensor,
    ends: set[int],
    prompt: Sequence[int],
    answer: Sequence[int],
    sampling: SamplingParams,
    words: Words,
    rule: PenaltyRule,
) -> tuple[int, float]:
    """Return the token after `answer` from raw logits [V], and its distance from the second best. The distance is 0
    if a truncation limit is within rounding. The matcher writes to `mask` [1, V / 32]."""
    if rule == PenaltyRule():
        logits = penalise(logits, sampling, prompt, answer)
    else:
        assert rule.counts_prompt and rule.after_temperature
        logits = penalise_by_rule(logits, sampling, prompt, answer, rule)
    logits = forbid(logits, words, [*prompt, *answer])
    logits[list(repeating_tokens([*prompt, *answer], sampling.no_repeat_ngram_size or 0))] = -math.inf
    if matcher is not None:
        matcher.fill_next_token_bitmask(mask)
        xgr.apply_token_bitmask_inplace(logits[None], mask, vocab_size=len(logits))
    if len(answer) < sampling.min_tokens:
        without = logits.clone()
        without[list(ends)] = -math.inf
        logits = without if bool(without.isfinite().any()) else logits
    near = math.inf
    if sampling.temperature > 0:
        logits, near = truncate(logits, replace(sampling, top_p=top_p_at(sampling, answer)))
        position = torch.tensor([len(prompt) + len(answer)])
        seed = (sampling.seed or 0) & (1 << 64) - 1
        signed = torch.tensor([seed - (seed >> 63 << 64)])
        words_1V = noise_words_reference(signed, position, torch.arange(len(logits)))
        logits = logits / sampling.temperature + gumbel_noise_reference(words_1V)[0]
    best = logits.topk(2)
    gap = float(best.values[0] - best.values[1])
    return int(best.indices[0]), gap if near > BOUNDARY else 0.0


@torch.inference_mode()
def decode(
    model: Any,
    prompt: Sequence[int],
    compiled: xgr.CompiledGrammar | None,
    end_ids: set[int],
    sampling: SamplingParams,
    words: Words = Words(),  # noqa: B008
    rule: PenaltyRule = PenaltyRule(),  # noqa: B008
) -> Reference:
    """Decode `prompt` token by token. A gap is 0 if a truncation limit was within rounding."""
    matcher = xgr.GrammarMatcher(compiled) if compiled is not None else None
    vocab_size = model.config.vocab_size
    mask = xgr.allocate_token_bitmask(1, vocab_size)
    ids, past = torch.tensor([list(prompt)]), None
    tokens: list[int] = []
    gaps: list[float] = []
    ends = end_ids | set(sampling.stop_token_ids)
    while len(tokens) < sampling.max_tokens:
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        token, gap = choose(
            out.logits[0, -1].float(), matcher, mask, ends, prompt, tokens, sampling, words, rule
        )
        tokens.append(token)
        gaps.append(gap)
        if matcher is not None:
            assert matcher.accept_token(token)
        if token in ends:
            break
        ids = torch.tensor([[token]])
    return Reference(tokens, gaps)
