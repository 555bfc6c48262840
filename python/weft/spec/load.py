"""Loads the drafters of a `Speculation`: host proposers first, then at most one device drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path

from weft import registry
from weft.config import Speculation
from weft.errors import InputError
from weft.guided.proposals import Proposals
from weft.guided.state import GuidedState
from weft.models.config import ModelConfig
from weft.runtime.interface import Runtime
from weft.spec.base import Drafter, DrafterContext, Proposer


def find_weights(speculation: Speculation, model_path: Path, target: ModelConfig) -> list[Path]:
    """The directories of the drafters' weights, for those that have weights. `target` is the config of the model in
    `model_path`. Raises `ModelError` for weights that are missing."""
    found = []
    for name in speculation.drafters:
        find = getattr(registry.load("drafters", name), "find", None)
        if find is not None:
            found.append(find(speculation, model_path, target))
    return found


@dataclass(frozen=True)
class Drafting:
    """The drafters of an engine. The `proposers` draft first, in this order, and the `drafter` extends their drafts."""

    speculation: Speculation
    drafter: Drafter | None = None
    proposers: tuple[Proposer, ...] = ()

    @classmethod
    def load(cls, context: DrafterContext) -> Drafting:
        """Load the drafters that `context.speculation` names. Raises `InputError` for an invalid combination, and
        `ModelError` for a drafter that does not fit the target."""
        speculation = context.speculation
        drafters: list[Drafter] = []
        proposers: list[Proposer] = []
        for name in speculation.drafters:
            loaded = registry.load("drafters", name).load(context)
            if isinstance(loaded, Proposer):
                if drafters:
                    raise InputError(
                        f"{name} proposes on the host and can't continue after {speculation.drafters[0]}; put it first"
                    )
                before = [place for proposer in proposers for place in proposer.sources.places]
                if before and max(before) >= min(loaded.sources.places):
                    raise InputError(
                        f"{name} can't continue after {speculation.drafters[len(proposers) - 1]}; the host proposes "
                        "given text first, then forced text, then n-grams, then lookahead's, each once"
                    )
                proposers.append(loaded)
            else:
                drafters.append(loaded)
        if speculation.lookahead_sizes is not None and (drafters or "ngram" in speculation.drafters):
            raise InputError(
                f"{speculation.name}: lookahead drafts with the target itself; only forced and given text go before "
                "it, and nothing after"
            )
        if len(drafters) > 1:
            raise InputError(f"{speculation.name}: one drafter on the device is enough; name one")
        return cls(speculation, drafters[0] if drafters else None, tuple(proposers))

    def proposals_maker(self, runtime: Runtime) -> Callable[[GuidedState], Proposals] | None:
        """Return a function that makes the host `Proposals` for a grammar state; None if there are no proposers."""
        if not self.proposers:
            return None
        sources = reduce(or_, (proposer.sources for proposer in self.proposers))
        guided = self.speculation.guide_drafts is not False
        return lambda state: Proposals(state, runtime.pinned, sources, guided=guided)
