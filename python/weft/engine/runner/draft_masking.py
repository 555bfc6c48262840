"""Whether masking drafts pays: measured while the engine runs, for each batch size and
number of drafts.

Masked drafts are accepted more often, and each costs a wait for its mask. Both ways give the same tokens, so an engine
may change between them at will.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.config import GuideDrafts

Kind = tuple[int, int]
"""What iterations are compared within: batch size and number of drafts."""

WARM_UP = 2
"""Iterations of each kind that are not counted: captures and cold caches."""

BLOCK = 16
"""Iterations of one kind in a row while both are measured."""

MEASURED = 64
"""Counted iterations of each kind before a decision."""

HOLD = 4096
"""Iterations for which a decision holds, before it is measured again."""


@dataclass
class _Arm:
    """What iterations of one kind have cost and given."""

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
    """The two ways of one kind of iteration."""

    arms: dict[bool, _Arm] = field(default_factory=lambda: {True: _Arm(), False: _Arm()})
    iterations: int = 0
    decided: bool | None = None


class DraftGuidance:
    """Decides for each iteration whether its drafts are masked."""

    def __init__(self, setting: GuideDrafts) -> None:
        self._setting = setting
        self._races: dict[Kind, _Race] = {}

    @property
    def ways(self) -> tuple[bool, ...]:
        """What `choose` may say."""
        return (True, False) if self._setting == "auto" else (bool(self._setting),)

    def choose(self, kind: Kind) -> bool:
        """Whether to mask the drafts of the next iteration of a kind, of which some rows are guided."""
        if self._setting != "auto":
            return bool(self._setting)
        race = self._races.setdefault(kind, _Race())
        if race.decided is not None:
            return race.decided
        return race.iterations // BLOCK % 2 == 0

    def observe(self, kind: Kind, masked: bool, seconds: float, tokens: int) -> None:
        """An iteration took `seconds` and committed `tokens` of guided rows."""
        if self._setting != "auto":
            return
        race = self._races.setdefault(kind, _Race())
        race.iterations += 1
        if race.decided is None:
            race.arms[masked].observe(seconds, tokens)
            if all(arm.iterations >= MEASURED for arm in race.arms.values()):
                race.decided = race.arms[True].tokens_per_second >= race.arms[False].tokens_per_second
                race.iterations = 0
        elif race.iterations >= HOLD:
            self._races[kind] = _Race()

    def decision(self, kind: Kind) -> bool | None:
        """What was decided for a kind of iteration; None while it is measured."""
        return bool(self._setting) if self._setting != "auto" else self._races.get(kind, _Race()).decided
