"""Prompt lookup: what followed the last tokens where they occurred before, in the prompt or in the output."""

from __future__ import annotations

from typing import Any

from weft.guided.proposals import NgramSettings
from weft.spec.base import DrafterContext


class Ngram:
    """Proposes on the host; needs no model. See `weft.guided.proposals.Proposals`."""

    def __init__(self, settings: NgramSettings | None = None) -> None:
        self.settings = settings or NgramSettings()

    @classmethod
    def load(cls, context: DrafterContext) -> Ngram:
        return cls()

    @property
    def sources(self) -> dict[str, Any]:
        """The keywords that it adds to `Proposals`."""
        return {"ngram": self.settings}
