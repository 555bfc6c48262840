"""Prompt lookup: what followed the last tokens where they occurred before, in the prompt or in the output."""

from __future__ import annotations

from weft.guided.proposals import NgramSettings, Sources
from weft.spec.base import DrafterContext


class Ngram:
    """Proposes on the host; needs no model. See `weft.guided.proposals.Proposals`."""

    def __init__(self, settings: NgramSettings | None = None) -> None:
        self.settings = settings or NgramSettings()

    @classmethod
    def load(cls, context: DrafterContext) -> Ngram:
        return cls()

    @property
    def sources(self) -> Sources:
        """What it adds to the proposals."""
        return Sources(ngram=self.settings)
