"""The text that the grammar forces, as drafts: whatever the model would say, it can say nothing else."""

from __future__ import annotations

from typing import Any

from weft.spec.base import DrafterContext


class Forced:
    """Proposes on the host; needs no model. See `weft.guided.proposals.Proposals`."""

    @classmethod
    def load(cls, context: DrafterContext) -> Forced:
        return cls()

    @property
    def sources(self) -> dict[str, Any]:
        """The keywords that it adds to `Proposals`."""
        return {"forced": True}
