"""Lookahead decoding: n-grams that the target itself makes, of a window of tokens beside the text.

The window is Jacobi's: token i of the next one is what the target says after token i of this one, so that each column
is a chain of tokens that follow each other. Its last n tokens are an n-gram, and go into a pool by their first token,
with those of the text itself; the drafts are what followed the text's last token in the newest n-gram.

The forward reads the window behind the drafts, as one causal line: a column sees the text, the drafts, and the columns
before it, but not its own chain. That is Jacobi's line, and less than the two-dimensional window of the paper (Fu et
al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"), whose columns see their chains; and
one n-gram is verified at a time, not several beside each other. Both cost drafts, never a token: what is verified is
exact.
"""

from __future__ import annotations

from weft.guided.proposals import Sources
from weft.spec.base import DrafterContext


class LookaheadDrafter:
    """Proposes on the host, from what the step's forward found (`engine/step/lookahead.py`)."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    @classmethod
    def load(cls, context: DrafterContext) -> LookaheadDrafter:
        return cls(Sources(lookahead=context.speculation.sizes_ahead))
