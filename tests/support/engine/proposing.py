"""Runs proposals by slot over a small vocabulary, iteration by iteration, without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from support.grammar.grammars import END, small_vocabulary
from weft.grammar import Guide, Matcher
from weft.guided.proposals import NgramSettings, Proposals, Sources
from weft.guided.state import GuidedShape, GuidedState, host_memory

X, Y, Z = (3 + byte for byte in b"xyz")
FORCED = Guide.regex("xyz(a|b)xyz")


class Iterations:
    """A guided state with drafts from forced text and n-grams, or with the given `options`. An iteration commits one
    token for each slot, or a list: the accepted drafts and the token after them."""

    def __init__(self, num_slots: int = 3, num_drafts: int = 4, **options: object) -> None:
        self.state = GuidedState(GuidedShape(num_slots, num_drafts, small_vocabulary().vocab_size, [END]))
        settings: dict[str, object] = {"forced": True, "ngram": NgramSettings()} | options
        guided = bool(settings.pop("guided", True))
        sources = Sources(**settings)  # type: ignore[arg-type]
        self.proposals = Proposals(self.state, host_memory, sources, guided=guided)

    def run(
        self,
        tokens: Mapping[int, int | list[int]],
        attach: dict[int, Matcher | None] | None = None,
        num_drafts: int | None = None,
    ) -> dict[int, list[int]]:
        self.begin(list(tokens), attach)
        return self.finish(tokens, num_drafts)

    def begin(self, slots: Sequence[int], attach: dict[int, Matcher | None] | None = None) -> None:
        self.state.push([*slots, self.state.num_slots], attach)

    def finish(
        self, tokens: Mapping[int, int | list[int]], num_drafts: int | None = None
    ) -> dict[int, list[int]]:
        self.state.fetch()
        self.state.verified_host.zero_()
        for slot, said in tokens.items():
            row = [said] if isinstance(said, int) else said
            self.state.verified_host[slot, : len(row) + 1] = torch.tensor([len(row) - 1, *row])
        self.state.commit()
        self.proposals.run(self.state.max_drafts if num_drafts is None else num_drafts)
        return {slot: self.proposals.proposed_host[:, slot].tolist() for slot in tokens}
