"""Splits the operations of a recording into the engine's iterations, here called turns.

A turn begins with the fetch of its snapshot. The operations after the fetch show which grammar stream calls the
engine made (`engine/runner/step.py`). Other sequences of operations come from split
graphs, or from a recording that stops in the middle of a turn. They are replayed operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weft.guided.flight import Operation


class Shape(Enum):
    """The grammar stream calls that made a turn."""

    DECODE = "an iteration: verify_masks, commit_masks, extend_masks"
    OTHER = "anything else"


@dataclass(frozen=True)
class Turn:
    """The operations from one snapshot to the next. `first` is the index of the fetch in the recording."""

    first: int
    operations: tuple[Operation, ...]

    @property
    def fetch(self) -> Operation:
        return self.operations[0]

    @property
    def num_verified(self) -> int:
        """The number of drafts that the turn verifies in each slot."""
        return sum(o.argument for o in self.operations[1:2] if o.name == "extend_through")

    @property
    def shape(self) -> Shape:
        """The grammar stream calls that made this turn, inferred from its operations."""
        names = [operation.name for operation in self.operations[1:]]
        is_verifying = names[:1] == ["extend_through"]
        rest = self.operations[1 + is_verifying :]
        drafts = [operation.argument for operation in rest[1:] if operation.name == "extend"]
        is_whole = rest[:1] != () and rest[0].name == "commit" and len(drafts) == len(rest) - 1
        if self.fetch.argument or not self.fetch.slots or not is_whole or drafts != [*range(1, len(rest))]:
            return Shape.OTHER
        return Shape.DECODE


def turns(operations: Sequence[Operation]) -> list[Turn]:
    """Split the operations of a recording into turns. The first operation is the fetch of a snapshot."""
    starts = [i for i, operation in enumerate(operations) if operation.name == "fetch"]
    ends = [*starts[1:], len(operations)]
    return [Turn(start, tuple(operations[start:end])) for start, end in zip(starts, ends, strict=True)]
