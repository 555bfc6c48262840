"""Retention: how long a request's pages stay cached once no sequence holds them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from weft.core import ValueKind
from weft.errors import InputError

DEFAULT_PRIORITY = 35
HIGHEST_PRIORITY = 100


@dataclass(frozen=True)
class RetentionRange:
    """The retention of the prompt's positions `start` to `end` - 1 (`end` None: to the prompt's end).

    Pages of a lower `priority`, 0 to 100, are evicted first. `duration_s` seconds after its last holder released it, a
    page returns to the default priority, 35 (None: never). Raises `InputError` for values out of bounds.
    """

    start: int
    end: int | None
    priority: int
    duration_s: float | None = None

    def __post_init__(self) -> None:
        if not ValueKind.INTEGER.holds(self.start) or self.start < 0:
            raise InputError(f"start is {self.start!r}; it must be a position of the prompt, 0 or more")
        if self.end is not None and not (ValueKind.INTEGER.holds(self.end) and self.end > self.start):
            raise InputError(
                f"end is {self.end!r}; it must be above start, {self.start} (or None: the prompt's end)"
            )
        check_priority("priority", self.priority)
        check_duration("duration_s", self.duration_s)


@dataclass(frozen=True)
class Retention:
    """The retention of one request's pages. The first position of a page decides: in the prompt, the range that holds
    it; after the prompt, `decode_priority` and `decode_duration_s`.

    A page of the prompt that is in no range keeps the priority that an earlier request set, or else the default.
    Raises `InputError` for ranges that overlap.
    """

    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration_s: float | None = None

    def __post_init__(self) -> None:
        check_priority("decode_priority", self.decode_priority)
        check_duration("decode_duration_s", self.decode_duration_s)
        ordered = sorted(self.ranges, key=lambda part: part.start)
        for before, behind in itertools.pairwise(ordered):
            if before.end is None or before.end > behind.start:
                raise InputError(
                    f"the ranges {before} and {behind} overlap; a position must be in one at most"
                )

    def at(self, position: int, num_prompt: int) -> tuple[int, float | None] | None:
        """Priority and duration of the page that begins at `position`; None if no range holds it."""
        if position >= num_prompt:
            return self.decode_priority, self.decode_duration_s
        for part in self.ranges:
            if part.start <= position and (part.end is None or position < part.end):
                return part.priority, part.duration_s
        return None


def check_priority(name: str, value: object) -> None:
    """Raise `InputError` unless `value` is a retention priority."""
    if not ValueKind.INTEGER.holds(value) or not 0 <= value <= HIGHEST_PRIORITY:  # type: ignore[operator]
        raise InputError(
            f"{name} is {value!r}; it must be a whole number, 0 (evicted first) to {HIGHEST_PRIORITY}"
        )


def check_duration(name: str, value: object) -> None:
    """Raise `InputError` unless `value` is a duration or None."""
    if value is not None and not (ValueKind.NUMBER.holds(value) and value >= 0):  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; it must be 0 or more seconds (or None: for ever)")
