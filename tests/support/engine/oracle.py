"""The reference: a plain greedy loop over a transformers model, masked by xgrammar through its Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import xgrammar as xgr


@dataclass(frozen=True)
class Reference:
    """Greedy tokens, and for each the difference between the two best masked logits."""

    tokens: list[int]
    gaps: list[float]


@torch.inference_mode()
def greedy(
    model: Any,
    prompt: Sequence[int],
    compiled: xgr.CompiledGrammar | None,
    end_ids: set[int],
    max_tokens: int,
) -> Reference:
    """Decode `prompt` token by token. `model` is a causal language model of transformers."""
    matcher = xgr.GrammarMatcher(compiled) if compiled is not None else None
    vocab_size = model.config.vocab_size
    mask = xgr.allocate_token_bitmask(1, vocab_size)
    ids = torch.tensor([list(prompt)])
    past: Any = None
    tokens: list[int] = []
    gaps: list[float] = []
    while len(tokens) < max_tokens:
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits = out.logits[:, -1].float()
        if matcher is not None:
            matcher.fill_next_token_bitmask(mask)
            xgr.apply_token_bitmask_inplace(logits, mask, vocab_size=vocab_size)
        best = logits[0].topk(2)
        token = int(best.indices[0])
        tokens.append(token)
        gaps.append(float(best.values[0] - best.values[1]))
        if matcher is not None:
            assert matcher.accept_token(token)
        if token in end_ids:
            break
        ids = torch.tensor([[token]])
    return Reference(tokens, gaps)


def assert_same(tokens: Sequence[int], reference: Reference, what: str, rounding: float = 2e-3) -> None:
    """Check that `tokens` are the reference's. They may differ from a token on whose two best logits are within
    `rounding`."""
    for i, (got, expected) in enumerate(zip(tokens, reference.tokens, strict=False)):
        if got != expected:
            assert reference.gaps[i] < rounding, (
                f"{what}: token {i} is {got}, the reference has {expected} and its two best logits are "
                f"{reference.gaps[i]} apart"
            )
            return
    assert len(tokens) == len(reference.tokens), (
        f"{what}: {len(tokens)} tokens, the reference has {len(reference.tokens)}"
    )
