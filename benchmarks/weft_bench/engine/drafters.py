"""The drafters that benchmarks compare, with their names in tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weft.config import GuideDrafts, Speculation

Make = Callable[..., Speculation]


@dataclass(frozen=True)
class Variant:
    """A drafter, and whether the grammar masks its drafts. `make` is a constructor of `Speculation`."""

    name: str
    make: Make
    guide_drafts: GuideDrafts = True

    def speculation(self, num_drafts: int) -> Speculation:
        """Return the drafter's `Speculation` with `num_drafts` drafts per iteration."""
        return self.make(num_draft_tokens=num_drafts, guide_drafts=self.guide_drafts)


def forced(num_draft_tokens: int, guide_drafts: GuideDrafts) -> Speculation:
    """Draft only forced text. It comes from the grammar, so masking these drafts has no effect."""
    return Speculation.forced(num_draft_tokens=num_draft_tokens)


def forced_then(then: Make, num_draft_tokens: int, guide_drafts: GuideDrafts) -> Speculation:
    """Draft forced text first, and continue with another drafter."""
    return Speculation.forced(then(num_draft_tokens=num_draft_tokens, guide_drafts=guide_drafts))


EAGLE3 = Variant("EAGLE3", Speculation.eagle3)

DRAFTERS = (
    EAGLE3,
    Variant("n-gram", Speculation.ngram),
    Variant("MTP", Speculation.mtp),
    Variant("draft model", Speculation.draft_model),
    Variant("forced", forced),
    Variant("forced + n-gram", partial(forced_then, Speculation.ngram)),
    Variant("forced + EAGLE3", partial(forced_then, Speculation.eagle3)),
)
"""Every drafter, with guided drafts."""

VARIANTS = (
    EAGLE3,
    Variant("EAGLE3 unguided", Speculation.eagle3, guide_drafts=False),
    Variant("n-gram", Speculation.ngram),
    Variant("n-gram unguided", Speculation.ngram, guide_drafts=False),
    Variant("MTP", Speculation.mtp),
    Variant("MTP unguided", Speculation.mtp, guide_drafts=False),
    Variant("draft model", Speculation.draft_model),
    Variant("draft model unguided", Speculation.draft_model, guide_drafts=False),
    *DRAFTERS[-3:],
)
"""Every drafter with guided and unguided drafts, in the order of published tables. Drafters that the tables lack
come last."""
