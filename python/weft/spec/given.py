"""Text given with a request, as drafts: what its caller expects the answer to be."""

from __future__ import annotations

from weft.guided.proposals import Sources
from weft.spec.base import DrafterContext


class Given:
    """Proposes on the host; needs no model. See `weft.guided.proposals.Proposals`."""

    @classmethod
    def load(cls, context: DrafterContext) -> Given:
        return cls()

    @property
    def sources(self) -> Sources:
        """What it adds to the proposals."""
        return Sources(given=True)
