"""The text that the grammar forces, as drafts: whatever the model would say, it can say nothing else."""

from __future__ import annotations

from weft.guided.proposals import Sources
from weft.spec.base import DrafterContext


class Forced:
    """Proposes on the host; needs no model. See `weft.guided.proposals.Proposals`."""

    @classmethod
    def load(cls, context: DrafterContext) -> Forced:
        return cls()

    @property
    def sources(self) -> Sources:
        """What it adds to the proposals."""
        return Sources(forced=True)
