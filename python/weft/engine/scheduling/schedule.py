"""What the scheduler decided for one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from weft.engine.kv.pool import Move
from weft.engine.sequence import Sequence


class Released(NamedTuple):
    """Slots that a sequence gave back: it may be admitted to others before the runner knows."""

    sequence: Sequence
    slots: tuple[int, ...]


@dataclass
class Schedule:
    """`decoding`, in `num_rows` rows, verify `num_drafts` drafts each, of which `grown` hold more pages than before.
    Before, `moves` of pages are made. `admitted` are new in their slots; of the prompts of `reading` so many tokens are
    read. `released` slots were given back since the schedule before."""

    decoding: list[Sequence] = field(default_factory=list)
    num_rows: int = 0
    num_drafts: int = 0
    grown: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    reading: list[tuple[Sequence, int]] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def everyone(self) -> list[Sequence]:
        """All that the step is for, each once."""
        reading = [sequence for sequence, _ in self.reading]
        return list(dict.fromkeys([*self.decoding, *self.admitted, *reading]))
