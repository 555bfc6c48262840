"""Drafters on the host: given text, forced text, n-grams, lookahead. They need no model of their own.

Each only names a native source (`guided/proposals.py`); the proposals are made in C++ (`csrc/drafting/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.guided.proposals import NgramSettings, Sources
from weft.spec.base import DrafterContext


@dataclass(frozen=True)
class HostDrafter:
    """A `Proposer` with the sources that its kind switches on."""

    sources: Sources


class Given(HostDrafter):
    """Predicted output: the text that a request expects as its answer."""

    @classmethod
    def load(cls, context: DrafterContext) -> Given:
        return cls(Sources(given=True))


class Forced(HostDrafter):
    """The text that the grammar forces: wherever only one continuation is legal, it is certain to be accepted."""

    @classmethod
    def load(cls, context: DrafterContext) -> Forced:
        return cls(Sources(forced=True))


class Ngram(HostDrafter):
    """Prompt lookup: the tokens that followed the last n-gram at its previous place in the prompt or the output."""

    @classmethod
    def load(cls, context: DrafterContext) -> Ngram:
        return cls(Sources(ngram=NgramSettings()))


class LookaheadDrafter(HostDrafter):
    """Lookahead decoding: n-grams that the target itself makes from a window of tokens next to the text.

    The window is a Jacobi line: token i of the next window is the target's prediction after token i of this one, so
    each column is a chain of tokens that follow each other. The last n tokens of a chain are an n-gram. It goes into
    a pool under its first token, together with the text's own n-grams. The drafts are the tokens that followed the
    text's last token in the newest n-gram.

    The forward reads the window behind the drafts as one causal line (`engine/runner/step.py`): a column sees the
    text, the drafts and the columns before it, but not its own chain. The paper (Fu et al., "Break the Sequential
    Dependency of LLM Inference Using Lookahead Decoding") uses a two-dimensional window, whose columns see their
    chains, and verifies several n-grams at once. The simpler form here finds fewer drafts; verification stays exact.
    """

    @classmethod
    def load(cls, context: DrafterContext) -> LookaheadDrafter:
        return cls(Sources(lookahead=context.speculation.sizes_ahead))
