"""Lookahead decoding in plain Python: lists of n-grams, and a full forward of every line with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.config import Lookahead


class Pool:
    """The n-grams of one text and of its window."""

    def __init__(self, sizes: Lookahead, prompt: Sequence[int]) -> None:
        self.sizes, self.text = sizes, []
        self.sets: dict[int, list[tuple[int, ...]]] = {}
        count = len(prompt)
        self.window = [prompt[(i - sizes.window) % count] for i in range(sizes.window)]
        self.columns = [[token] for token in self.window]
        self.accept(prompt)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            self._insert(self.text)

    def follow(self, window: Sequence[int]) -> None:
        self.window = list(window)
        for column, token in zip(self.columns, window, strict=True):
            column.append(token)
            self._insert(column)

    def drafts(self, most: int) -> list[int]:
        known = self.sets.get(self.text[-1], [])
        return list(known[-1][:most]) if known else []

    def _insert(self, chain: Sequence[int]) -> None:
        if len(chain) < self.sizes.ngram:
            return
        first, *rest = chain[-self.sizes.ngram :]
        known = self.sets.setdefault(first, [])
        if tuple(rest) in known:
            known.remove(tuple(rest))
        known.append(tuple(rest))
        del known[: -self.sizes.verification]


@dataclass
class Told:
    """What a decoding gave: its tokens, and its iterations with drafts."""

    tokens: list[int] = field(default_factory=list)
    iterations: int = 0
    proposed: int = 0
    accepted: int = 0


@torch.inference_mode()
def decode(
    model: Any, prompt: Sequence[int], sizes: Lookahead, ends: set[int], max_tokens: int, max_drafts: int = 8
) -> Told:
    """Greedy lookahead decoding; `model` is a transformers causal LM."""

    def following(line: Sequence[int]) -> list[int]:
        found: list[int] = model(torch.tensor([list(line)])).logits[0].argmax(-1).tolist()
        return found

    pool, told = Pool(sizes, prompt), Told()
    told.tokens = following(prompt)[-1:]
    pool.accept(told.tokens)
    while told.tokens[-1] not in ends and len(told.tokens) < max_tokens:
        drafts, start = pool.drafts(max_drafts), len(pool.text) - 1
        said = following([*pool.text, *drafts, *pool.window])[start:]
        count = 0
        while count < len(drafts) and drafts[count] == said[count]:
            count += 1
        new = said[: count + 1]
        last = next((i for i, token in enumerate(new, 1) if token in ends), len(new))
        kept = new[: min(last, max_tokens - len(told.tokens))]
        told.tokens += kept
        if drafts:
            is_over = told.tokens[-1] in ends or len(told.tokens) == max_tokens
            told.iterations += 1
            told.proposed += min(len(drafts), len(kept)) if is_over else len(drafts)
            told.accepted += min(count, len(kept))
        pool.accept(new)
        pool.follow(said[len(drafts) + 1 :][: sizes.window])
    return told
