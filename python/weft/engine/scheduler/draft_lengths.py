"""Chooses how many drafts an iteration makes.

With more drafts an iteration takes longer, and gives more tokens if the target accepts them. A dense model verifies
another token in little more time. In a mixture of experts the token reads the weights of further experts, so the time
grows with each draft. Both sides are measured while the engine runs: the time of iterations, by batch size and number
of drafts, and how often the target accepts the first j drafts. The number with the most tokens per second is chosen.
"""

from __future__ import annotations

from collections import abc, deque
from dataclasses import dataclass, field
from statistics import median

from weft.config import Speculation

WARM_UP = 2
"""The number of first iterations after a change that are not measured. The first one verifies the drafts of the
iteration before the change."""

MEASURED = 12
"""The number of iterations that measure a number of drafts."""

HOLD = 512
"""The number of iterations for which a choice holds. Then the next smaller and the next larger number are measured
again."""

WINDOW = 32
"""The number of recent times of a number of drafts whose median is its cost."""

DECAY = 0.99
"""The weight of an iteration's acceptance after the next one."""


class Survival:
    """How often the target accepts the first j drafts of a row, in recent iterations that verified at least j."""

    def __init__(self, max_drafts: int) -> None:
        self._rows = [0.0] * max_drafts
        self._accepted = [0.0] * max_drafts

    def note(self, num_rows: int, num_drafts: int, accepted: abc.Sequence[int]) -> None:
        """Add an iteration of `num_rows` rows. `accepted` are the numbers of accepted drafts of the rows that had any
        to verify."""
        for j in range(num_drafts):
            self._rows[j] = self._rows[j] * DECAY + num_rows
            self._accepted[j] = self._accepted[j] * DECAY + sum(count > j for count in accepted)

    def forget(self, num_drafts: int) -> None:
        """Forget the drafts after the first `num_drafts`. They were verified long ago, in another text."""
        for j in range(num_drafts, len(self._rows)):
            self._rows[j] = self._accepted[j] = 0.0

    def tokens(self, num_drafts: int) -> float:
        """The expected number of tokens of a row with `num_drafts` drafts. Positions that were never verified count as
        refused."""
        total, share = 1.0, 1.0
        for rows, accepted in zip(self._rows[:num_drafts], self._accepted[:num_drafts], strict=True):
            share = min(share, accepted / rows if rows else 0.0)
            total += share
        return total


@dataclass
class _Size:
    """The iterations of one batch size. `numbers` are the numbers of drafts to choose from, smallest first.

    `survival` is that of this size's rows. `times` are the seconds of recent iterations, by number. `chosen` is the
    number in use for the next `num_left` iterations, of which `num_skipped` are not measured. `pending` are the numbers
    to measure after it, the next one last. `is_held`: the number was chosen, and is not being tried. `last_held` is the
    last such number; before the first choice it is the largest number.
    """

    numbers: tuple[int, ...]
    survival: Survival = field(init=False)
    times: dict[int, deque[float]] = field(default_factory=dict)
    pending: list[int] = field(default_factory=list)
    chosen: int = 0
    num_left: int = 0
    num_skipped: int = 0
    is_held: bool = False
    last_held: int = field(init=False)

    def __post_init__(self) -> None:
        self.survival = Survival(self.numbers[-1])
        self.last_held = self.numbers[-1]
        self.pending = list(self.numbers)
        self._try()

    def note(self, seconds: float) -> None:
        """Add the time of an iteration with the chosen number."""
        self.times.setdefault(self.chosen, deque(maxlen=WINDOW)).append(seconds)
        self.num_left -= 1

    def go_on(self) -> None:
        """Choose the next number, when no iteration is left of this one."""
        if self.is_held:
            place = self.numbers.index(self.chosen)
            self.pending = [*self.numbers[max(place - 1, 0) : place], *self.numbers[place + 1 : place + 2]]
            self.is_held = False
            self.survival.forget(self.chosen)
        if self.pending:
            self._try()
            return
        costs = self.costs()
        self._use(max(self.numbers, key=lambda number: self.survival.tokens(number) / costs[number]), HOLD)
        self.is_held, self.last_held = True, self.chosen

    def costs(self) -> dict[int, float]:
        """The median seconds of an iteration, by number of drafts."""
        return {number: median(times) for number, times in self.times.items()}

    def _try(self) -> None:
        number = self.pending.pop()
        self.times.pop(number, None)  # they are of another time
        self._use(number, MEASURED)

    def _use(self, number: int, num_iterations: int) -> None:
        self.num_skipped = WARM_UP if number != self.chosen or not self.times else 0
        self.chosen, self.num_left = number, num_iterations


class DraftLengths:
    """The number of drafts of each iteration: that of the settings, or with `Speculation.adaptive` the best one up to
    it."""

    def __init__(self, speculation: Speculation, max_batch: int) -> None:
        self._limits = [0, *map(speculation.draft_tokens, range(1, max_batch + 1))]
        self._speculation = speculation
        self._sizes: dict[tuple[int, int], _Size] = {}  # by batch size, a power of two, and limit
        self._last = 0  # the number of drafts that the last iteration made for the next one

    def choose(self, num_rows: int, reads_prompts: bool = False) -> int:
        """The number of drafts for an iteration of `num_rows` rows. No number is tried in an iteration that also reads
        prompts: it isn't measured, so the trial would last as long as prompts come."""
        if not self._speculation.adaptive:
            return self._limits[num_rows]
        if not num_rows:
            return 0
        size = self._size(num_rows)
        return size.last_held if reads_prompts else size.chosen

    def pass_over(self, num_drafts: int) -> None:
        """Take note of an iteration that isn't measured. It made `num_drafts` drafts for the next one."""
        self._last = num_drafts

    def note(self, num_rows: int, num_drafts: int, seconds: float, accepted: abc.Sequence[int]) -> bool:
        """Add a measured iteration without prompts, in which `num_rows` rows verified `num_drafts` drafts each. It took
        `seconds`. `accepted` are the numbers of accepted drafts of the rows that had any to verify. Returns whether the
        choice has changed."""
        if not self._speculation.adaptive:
            return False
        num_given, self._last = min(self._last, num_drafts), num_drafts
        size = self._size(num_rows)
        if num_drafts != size.chosen:  # launched before the last change, or no request wanted drafts
            return False
        if size.num_skipped:
            size.num_skipped -= 1
            return False
        size.survival.note(num_rows, num_given, accepted)
        size.note(seconds)
        if size.num_left:
            return False
        size.go_on()
        return size.chosen != num_drafts

    def costs(self, num_rows: int) -> dict[int, float]:
        """The measured seconds of an iteration of `num_rows` rows, by number of drafts."""
        return self._size(num_rows).costs()

    def decision(self, num_rows: int) -> int | None:
        """The number that was chosen for iterations of `num_rows` rows; None while numbers are tried."""
        size = self._size(num_rows)
        return size.chosen if size.is_held else None

    def _size(self, num_rows: int) -> _Size:
        key = 1 << (num_rows - 1).bit_length(), self._limits[num_rows]
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = _Size(self._speculation.draft_numbers(num_rows))
        return size
