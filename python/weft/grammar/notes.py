"""What of a guide is not enforced, as its client is told: a note for each, with its keyword and its place.

Schemas come from strangers, who choose what their keys are, how long and how many. So a place is a link to the one
around it, which costs the same however deep it is; notes are escaped and shortened; and beyond the first few they are
counted.
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
    """Where in a schema: a key or an index, and the place of what has it (None: the whole)."""

    parent: Place | None
    part: str | int


Found = Iterable[tuple[Place | None, str]]
"""What is not enforced, and where."""


def where(place: Place | None) -> str:
    """A place as a JSON pointer; the whole is #. Long ones are shortened in their middle."""
    parts: list[str] = []
    while place is not None:
        parts.append(shortened(str(place.part), MAX_PART).replace("~", "~0").replace("/", "~1"))
        place = place.parent
    parts.reverse()
    if len(parts) > MAX_PARTS:
        parts[MAX_PARTS // 2 : -MAX_PARTS // 2] = ["…"]
    return "/".join(["#", *parts])


def shortened(text: str, most: int) -> str:
    """The text, with its middle left out where it has more than `most` characters."""
    head = most * 2 // 3
    return text if len(text) <= most else f"{text[:head]}…{text[head + 1 - most :]}"


@dataclass(frozen=True)
class Notes:
    """The first `lines` of `count` things that are not enforced."""

    lines: tuple[str, ...] = ()
    count: int = 0

    @classmethod
    def of(cls, found: Found) -> Notes:
        """A line for each of the first; the rest is counted."""
        lines: list[str] = []
        count = 0
        for place, what in found:
            count += 1
            if count <= MAX_NOTES:
                lines.append(escaped(f"{where(place)}: {shortened(what, MAX_NOTE)}"))
        return cls(tuple(lines), count)

    def told(self) -> tuple[str, ...]:
        """The lines, and how many more there are."""
        more = self.count - len(self.lines)
        return (*self.lines, f"and {more} more") if more else self.lines

    def __add__(self, other: Notes) -> Notes:
        return Notes((self.lines + other.lines)[:MAX_NOTES], self.count + other.count)

    def __bool__(self) -> bool:
        return self.count > 0

    def __str__(self) -> str:
        return "; ".join(self.told())


def refuse(what: str, library: str, notes: Notes) -> None:
    """Raises `GuideError` where there is a note."""
    if notes:
        raise GuideError(
            f"{what}: {library} does not enforce all of it: {notes}. Change that, or give strict=False (--no-strict), "
            "which enforces the rest"
        )
