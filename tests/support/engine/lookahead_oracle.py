"""Lookahead decoding in plain Python: lists of n-grams, and a full forward of every line with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.config import Lookahead


class Pool:
    """The n-grams of one text and of its lookahead window."""

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
    """The result of decoding: the tokens, and the iteration and draft counts."""

    tokens: list[int] = field(default_factory=list)
    iterations: int = 0
    proposed: int = 0
    accepted: int = 0
