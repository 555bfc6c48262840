"""Decides for each iteration whether the grammar masks drafts.

A masked draft is accepted more often, but must wait for its mask. Both choices give the same tokens, so the engine may
switch between them at any iteration. It measures which one is faster while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.config import GuideDrafts

IterationSize = tuple[int, int]
"""The size of an iteration: (batch size, number of drafts). Only iterations of one size are compared."""

WARM_UP = 2
"""The number of first iterations of each size and choice that are not measured, because they capture graphs and have
cold caches."""

BLOCK = 16
"""While both choices are measured, they alternate after this number of iterations."""

MEASURED = 64
"""The number of measured iterations of each choice before a decision."""

HOLD = 4096
"""The number of iterations for which a decision holds, before both choices are measured again."""


@dataclass
class _Arm:
    """The measurements of one choice: its iterations, their time and their tokens."""

    skipped: int = 0
    iterations: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def observe(self, seconds: float, tokens: int) -> None:
        if self.skipped < WARM_UP:
            self.skipped += 1
            return
        self.iterations += 1
        self.seconds += seconds
        self.tokens += tokens

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class _Race:
    """The measurements of both choices for iterations of one size, and the decision."""

    arms: dict[bool, _Arm] = field(default_factory=lambda: {True: _Arm(), False: _Arm()})
    iterations: int = 0
    decided: bool | None = None


class DraftGuidance:
    """Decides for each iteration whether the grammar masks its drafts."""

    def __init__(self, setting: GuideDrafts) -> None:
        self._setting = setting
        self._races: dict[IterationSize, _Race] = {}

    @property
    def choices(self) -> tuple[bool, ...]:
        """The values that `choose` may return."""
        return (True, False) if self._setting == "auto" else (bool(self._setting),)

    def choose(self, size: IterationSize) -> bool:
        """Whether to mask the drafts of the next iteration of a size. Only sequences with a guide have masks."""
        if self._setting != "auto":
            return bool(self._setting)
        race = self._races.setdefault(size, _Race())
        if race.decided is not None:
            return race.decided
        return race.iterations // BLOCK % 2 == 0

    def observe(self, size: IterationSize, masked: bool, seconds: float, tokens: int) -> None:
        """Add a measured iteration: it took `seconds`, and its guided rows committed `tokens` tokens."""
        if self._setting != "auto":
            return
        race = self._races.setdefault(size, _Race())
        race.iterations += 1
        if race.decided is None:
            race.arms[masked].observe(seconds, tokens)
            if all(arm.iterations >= MEASURED for arm in race.arms.values()):
                race.decided = race.arms[True].tokens_per_second >= race.arms[False].tokens_per_second
                race.iterations = 0
        elif race.iterations >= HOLD:
            self._races[size] = _Race()

    def decision(self, size: IterationSize) -> bool | None:
        """The decision for iterations of a size; None while both choices are measured."""
        return bool(self._setting) if self._setting != "auto" else self._races.get(size, _Race()).decided
