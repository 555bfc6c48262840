"""The drafters on the host: given text, forced text, n-grams and lookahead. They need no draft model.

Each class only selects a native source (`guided/proposals.py`). The C++ code makes the drafts (`csrc/drafting/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.guided.proposals import NgramSettings, Sources
from weft.spec.base import DrafterContext


@dataclass(frozen=True)
class HostDrafter:
    """A `Proposer` that enables some native sources."""

    sources: Sources


class Given(HostDrafter):
    """Predicted outputs: drafts come from the text that a request gives as its expected answer."""

    @classmethod
    def load(cls, context: DrafterContext) -> Given:
        return cls(Sources(given=True))


class Forced(HostDrafter):
    """Forced text (jump-forward): if the grammar allows only one continuation, drafts of it are always accepted."""

    @classmethod
    def load(cls, context: DrafterContext) -> Forced:
        return cls(Sources(forced=True))


class Ngram(HostDrafter):
    """Prompt lookup: finds the latest earlier occurrence of the text's last n-gram, in the prompt or the output. The
    drafts are the tokens after it."""

    @classmethod
    def load(cls, context: DrafterContext) -> Ngram:
        return cls(Sources(ngram=NgramSettings()))


class LookaheadDrafter(HostDrafter):
    """Lookahead decoding: drafts come from n-grams that the target itself makes, in a window of guessed tokens.

    The window holds one step of a Jacobi iteration: token i of the next window is the target's prediction after token i
    of this one. So a column is, over the iterations, a chain of tokens that follow each other. The last n tokens of a
    chain are an n-gram. It goes into a pool under its first token, as do the text's own n-grams. The drafts come from
    the newest n-gram that begins with the text's last token.

    The target's forward has the window after the drafts, with plain causal attention (`engine/runner/step.py`). So a
    column attends to the text, the drafts and the columns before it, but not to its own chain. The paper (Fu et al.,
    "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding") uses a two-dimensional window, whose
    columns attend to their chains. It also verifies several n-grams at once. The simpler form here finds fewer drafts.
    Verification stays exact.
    """

    @classmethod
    def load(cls, context: DrafterContext) -> LookaheadDrafter:
        return cls(Sources(lookahead=context.speculation.lookahead_sizes))
