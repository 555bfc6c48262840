"""The ways to draft that benchmarks compare, under the names that their tables have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from weft.config import GuideDrafts, Speculation

Make = Callable[..., Speculation]


@dataclass(frozen=True)
class Variant:
    """A drafter, and whether the grammar masks its drafts. `make` is a method of `Speculation`."""

    name: str
    make: Make
    guide_drafts: GuideDrafts = True

    def speculation(self, num_drafts: int) -> Speculation:
        """With `num_drafts` drafts an iteration."""
        return self.make(num_draft_tokens=num_drafts, guide_drafts=self.guide_drafts)


def forced(num_draft_tokens: int, guide_drafts: GuideDrafts) -> Speculation:
    """Forced text alone: it is the grammar's, so there is nothing to guide."""
    return Speculation.forced(num_draft_tokens=num_draft_tokens)


def forced_then(then: Make, num_draft_tokens: int, guide_drafts: GuideDrafts) -> Speculation:
    """Forced text, and another drafter after it."""
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
"""Every drafter, its drafts guided."""

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
"""Every drafter with guided drafts and without; in the order of published tables, what those lack last."""
