"""How much of the grammar's work lay beside the model's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.trace.chrome import track_names
from weft.trace.slice import Slice


@dataclass(frozen=True)
class Overlap:
    """What the grammar's stream did, and how much of that another stream worked meanwhile, in microseconds."""

    grammar_us: float
    beside_us: float

    @property
    def share(self) -> float:
        """The part of the grammar's work that lay beside another stream's, 0 to 1."""
        return self.beside_us / self.grammar_us if self.grammar_us else 0.0


def overlap(slices: Sequence[Slice]) -> Overlap:
    """Of a recording; nothing where no stream has host nodes."""
    names = track_names(slices)
    grammar = busy(s for s in slices if names[s.stream] == "grammar stream")
    others = busy(s for s in slices if names[s.stream] != "grammar stream")
    beside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in grammar for b in others)
    return Overlap(sum(end - begin for begin, end in grammar), beside)


def busy(slices: Iterable[Slice]) -> list[tuple[float, float]]:
    """The times in which any of them ran, apart from each other, in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((s.begin_us, s.end_us) for s in slices):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
