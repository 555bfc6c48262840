"""Commits the tokens of a batch to its sequences, natively.

The native class adds the tokens of an iteration to the output of each sequence, and updates its statistics. It has the
rules for the end of each answer as data. An iteration that may end an answer, or that a matcher did not accept, is left
to Python (`engine/output.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import _core
from weft.core import SAMPLED
from weft.guided.proposals import Proposals
from weft.guided.state import GuidedState


class Answers(_core.Answers):
    """The answers of the slots of `state`.

    Accepted drafts are from the last of `drafters`. With several drafters, `proposals` knows which tokens the host
    proposed.
    """

    def __init__(self, state: GuidedState, drafters: Sequence[str], proposals: Proposals | None) -> None:
        native = proposals.native if proposals is not None and len(drafters) > 1 else None
        super().__init__(state, SAMPLED, drafters[-1] if drafters else "", native)
