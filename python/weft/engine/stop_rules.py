"""What ends an answer besides its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StopWords(Protocol):
    """Watches a text for the words that end it."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that the text now holds, if it does."""


@dataclass(frozen=True)
class StopRules:
    """`words` watch the text; `end_ids` end it in the place of the engine's end tokens (None: those; with a guide,
    always those). With `expected` the answer is only held against it: it ends with the first token that is another, or
    that comes after it."""

    words: StopWords | None = None
    end_ids: frozenset[int] | None = None
    expected: tuple[int, ...] = ()

    def ends(self, end_tokens: frozenset[int]) -> frozenset[int]:
        """The tokens that end the answer, where `end_tokens` are the engine's."""
        return end_tokens if self.end_ids is None else self.end_ids

    def departs(self, num_before: int, tokens: Sequence[int]) -> int | None:
        """How many of `tokens`, which come after `num_before` of the answer, there are up to the first that is not what
        is expected; None where all are, or nothing is expected."""
        if not self.expected:
            return None
        expected = self.expected[num_before : num_before + len(tokens)]
        same = next(
            (i for i, pair in enumerate(zip(tokens, expected, strict=False)) if pair[0] != pair[1]),
            len(expected),
        )
        return None if same == len(tokens) else same + 1


NO_STOPS = StopRules()
