"""Notes for clients on the parts of a guide that are not enforced, each with its keyword and its place.

A client controls the keys of its schema, their length and their number. So a `Place` links to its parent, which costs
the same at any depth. Notes are escaped and shortened, and only the first `MAX_NOTES` are kept. The others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from weft.errors import GuideError, escaped

MAX_NOTES = 16
MAX_NOTE = 240
MAX_PART = 48
MAX_PARTS = 12


class Place(NamedTuple):
    """A place in a schema: a key or an index, and the place of its container (None: the root)."""

    parent: Place | None
    part: str | int


Findings = Iterable[tuple[Place | None, str]]
"""Parts that are not enforced, each as its place and a description."""


def where(place: Place | None) -> str:
    """A place as a JSON pointer; # is the root. A long pointer is shortened in the middle."""
    parts: list[str] = []
    while place is not None:
        parts.append(shortened(str(place.part), MAX_PART).replace("~", "~0").replace("/", "~1"))
        place = place.parent
    parts.reverse()
    if len(parts) > MAX_PARTS:
        parts[MAX_PARTS // 2 : -MAX_PARTS // 2] = ["…"]
    return "/".join(["#", *parts])


def shortened(text: str, limit: int) -> str:
    """The text; one of more than `limit` characters loses its middle."""
    head = limit * 2 // 3
    return text if len(text) <= limit else f"{text[:head]}…{text[head + 1 - limit :]}"


@dataclass(frozen=True)
class Notes:
    """The first `lines` of `count` notes."""

    lines: tuple[str, ...] = ()
    count: int = 0

    @classmethod
    def of(cls, found: Findings) -> Notes:
        """Make lines of the first `MAX_NOTES` findings, and count all."""
        lines: list[str] = []
        count = 0
        for place, description in found:
            count += 1
            if count <= MAX_NOTES:
                lines.append(escaped(f"{where(place)}: {shortened(description, MAX_NOTE)}"))
        return cls(tuple(lines), count)

    def texts(self) -> tuple[str, ...]:
        """The lines, and a last line that counts the notes left out."""
        more = self.count - len(self.lines)
        return (*self.lines, f"and {more} more") if more else self.lines

    def __add__(self, other: Notes) -> Notes:
        return Notes((self.lines + other.lines)[:MAX_NOTES], self.count + other.count)

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return "; ".join(self.texts())


def refuse(subject: str, library: str, notes: Notes) -> None:
    """Raise `GuideError` if there are notes, because a strict guide must have none."""
    if notes:
        raise GuideError(
            f"{subject}: {library} does not enforce all of it: {notes}. Change that, or give strict=False "
            "(--no-strict), which enforces the rest"
        )
