"""What ends an answer besides its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StopWords(Protocol):
    """Watches a text for the words that end it."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that the text now holds, if it does."""


@dataclass(frozen=True)
class StopRules:
    """`words` watch the text; `end_ids` end it in the place of the engine's end tokens (None: those; with a guide,
    always those)."""

    words: StopWords | None = None
    end_ids: frozenset[int] | None = None

    def ends(self, end_tokens: frozenset[int]) -> frozenset[int]:
        """The tokens that end the answer, where `end_tokens` are the engine's."""
        return end_tokens if self.end_ids is None else self.end_ids


NO_STOPS = StopRules()
