"""A recording's operations, cut into the turns of the engine that made them.

A turn begins with its snapshot. What follows it tells which calls of the grammar stream the engine made
(`engine/runner/step.py`, `engine/runner/prefill.py`); a turn of another shape, such as those of split graphs or one
that was cut off when the recording was taken, is done operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weft.guided.flight import Operation


class Shape(Enum):
    """Which of the grammar stream's calls made a turn."""

    FIRST = "the first token of prompts: first_mask, commit_masks"
    DECODE = "an iteration: verify_masks, commit_masks, extend_masks"
    OTHER = "anything else"


@dataclass(frozen=True)
class Turn:
    """Operations from a snapshot to the next; `first` is the place of the fetch among all operations."""

    first: int
    operations: tuple[Operation, ...]

    @property
    def fetch(self) -> Operation:
        return self.operations[0]

    @property
    def num_verified(self) -> int:
        """Drafts of each slot that were to be verified."""
        return sum(o.argument for o in self.operations[1:2] if o.name == "extend_through")

    @property
    def shape(self) -> Shape:
        """How it was made."""
        names = [operation.name for operation in self.operations[1:]]
        is_verifying = names[:1] == ["extend_through"]
        rest = self.operations[1 + is_verifying :]
        drafts = [operation.argument for operation in rest[1:] if operation.name == "extend"]
        is_whole = rest[:1] != () and rest[0].name == "commit" and len(drafts) == len(rest) - 1
        if self.fetch.argument or not self.fetch.slots or not is_whole or drafts != [*range(1, len(rest))]:
            return Shape.OTHER
        comes = any(has_matcher for has_matcher in self.fetch.attached.values())
        return Shape.FIRST if comes and not is_verifying and not drafts else Shape.DECODE


def turns(operations: Sequence[Operation]) -> list[Turn]:
    """The turns of a recording, which begins with a snapshot."""
    starts = [i for i, operation in enumerate(operations) if operation.name == "fetch"]
    ends = [*starts[1:], len(operations)]
    return [Turn(start, tuple(operations[start:end])) for start, end in zip(starts, ends, strict=True)]
