"""Walks through a compiled guide, to find steps that take too long, or longer the further they go.

A costly token may hide behind text that must come first. Cost may also grow with the text: in a grammar that reads a
text in many ways, each token costs more than the last. So a walk takes some hundreds of tokens, prefers those that
continue, and follows forced text without masks. The growth of time along it predicts the cost of a long answer.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.errors import GuideError
from weft.grammar.base import CompiledGuide, Matcher
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """The bounds of one walk: `tokens` that are not forced, within `time_s` seconds of CPU time. Each token is the
    longest (with `prefers=-1` the shortest) of `candidates` drawn from the mask."""

    tokens: int
    time_s: float
    candidates: int
    prefers: int = 1


PLANS = (Plan(384, 0.4, 6), Plan(128, 0.2, 1), Plan(128, 0.2, 6, prefers=-1))
MAX_FORCED = 4096  # tokens of forced text in one walk
FORCED_AT_ONCE = 64
MAX_ATTEMPTS = 8  # tokens tried at one place, to find one that the text continues after
ROLLED_BACK = 8  # tokens rolled back at the end of a walk, as many as drafts

# A single slow step may be an accident, such as a page fault; two are not, and nor is one that is very slow.
MANY_SLOW = 2
VERY_SLOW = 4.0  # times `mask_time_s`

LONGER_S = 0.4  # CPU seconds for continuing walks whose steps seem to grow
GROWN = 0.05  # the share of `mask_time_s` that a step far into a growing walk may be predicted to take

PARTS, MIN_PART = 8, 6  # the parts of a walk that are compared, and the least steps of each
FLOOR_S = 2e-4  # a step below this time is never refused for growth
MIN_POWER, MAX_POWER = (
    0.5,
    8.0,
)  # time ~ tokens ** power: the least that counts as growth, the most that is believed


def walk(compiled: CompiledGuide, vocabulary: Vocabulary, limits: CompileLimits) -> None:
    """Walk into a guide. Raises `GuideError` where a step takes longer than `limits.mask_time_s`, or is predicted to
    within an answer of `limits.answer_tokens`."""
    left_s = LONGER_S
    for seed, plan in enumerate(PLANS):
        current = _Walk(compiled.matcher(), vocabulary, plan, random.Random(seed))
        current.run(plan.tokens, plan.time_s)
        _check_each(current.times, limits)
        # Growth that is small after a hundred tokens may be large after thousands, so a growing walk continues.
        goes_on = left_s > 0 and _grows(current.steps)
        if goes_on:
            left_s -= current.run(limits.answer_tokens - plan.tokens, left_s)
            _check_each(current.times, limits)
        _check_growth(current.steps, limits, GROWN if goes_on else 1.0)


class _Walk:
    """One walk. `steps` has the number of tokens before each step, and the step's CPU seconds; `others` has the
    seconds of all other calls."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, plan: Plan, rng: random.Random) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._plan = plan
        self._rng = rng
        self._row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
        self._usable = _words(range(vocabulary.vocab_size), len(self._row))
        self._usable &= ~_words(vocabulary.end_ids, len(self._row))
        self._closing: set[int] = set()  # tokens after which only the end of the text could follow
        self._length = self._forced = 0
        self._ahead_s = (
            0.0  # seconds of the mask after the last token; a library may cache it for the next step
        )
        self.steps: list[tuple[int, float]] = []
        self.others: list[float] = []

    def run(self, tokens: int, time_s: float) -> float:
        """Walk on, at most to the end of the text. Returns the seconds that it took."""
        begin = time.thread_time()
        for number in range(tokens):
            if number % 8 == 0:
                self._follow_forced()
            if not self._take_one() or time.thread_time() - begin > time_s:
                break
        count = min(ROLLED_BACK, self._length)
        _, seconds = timed(partial(self._matcher.rollback, count))
        self._length -= count
        self.others.append(seconds)
        return time.thread_time() - begin

    @property
    def times(self) -> list[float]:
        """The seconds of all calls."""
        return [*self.others, *(seconds for _, seconds in self.steps)]

    def _take_one(self) -> bool:
        """Take one token, with the mask before it and the one after it. Returns False at the end of the text."""
        for _ in range(MAX_ATTEMPTS):
            row, filling = self._fill()
            filling = max(filling, self._ahead_s)
            self._ahead_s = 0.0
            token = self._choose(row)
            if token is None:
                self.steps.append((self._length, filling))
                return False
            taken, taking = timed(partial(self._matcher.accept, token))
            self.steps.append((self._length, filling + taking))
            if not taken:
                return False
            self._length += 1
            if token in self._closing or self._goes_on():
                return True
            self._closing.add(token)  # another token may lead further
            self._ahead_s = 0.0
            self._matcher.rollback(1)
            self._length -= 1
        return False

    def _goes_on(self) -> bool:
        """Return whether anything but an end token may follow."""
        if self._matcher.is_terminated():
            return False
        row, self._ahead_s = self._fill()
        return bool(row.any())

    def _fill(self) -> tuple[NDArray[np.uint32], float]:
        """Return the mask without end tokens, and the seconds that it took."""
        self._row[:] = 0
        is_masked, seconds = timed(partial(self._matcher.fill, self._row))
        return (self._row.view(np.uint32) & self._usable if is_masked else self._usable), seconds

    def _follow_forced(self) -> None:
        """Accept the forced tokens. The guide chose them, so they don't count against the plan."""
        while self._forced < MAX_FORCED:
            tokens, seconds = timed(partial(self._matcher.forced, FORCED_AT_ONCE))
            self.others.append(seconds)
            for token in tokens:
                taken, seconds = timed(partial(self._matcher.accept, token))
                if not taken:
                    return
                self.others.append(seconds)
                self._length += 1
            self._forced += len(tokens)
            if len(tokens) < FORCED_AT_ONCE:
                return

    def _choose(self, row: NDArray[np.uint32]) -> int | None:
        """Draw a token from the mask; None where only the end may follow."""
        places = np.flatnonzero(row)
        if not len(places):
            return None
        drawn = [self._draw(row, places) for _ in range(self._plan.candidates)]
        drawn = [token for token in drawn if token not in self._closing] or drawn[:1]
        return max(drawn, key=lambda token: self._plan.prefers * len(self._vocabulary.tokens[token]))

    def _draw(self, row: NDArray[np.uint32], places: NDArray[np.intp]) -> int:
        """Draw a token: first a word of the mask, then a bit of it. A token with few neighbours is drawn more often,
        which helps: costly tokens hide among many cheap ones."""
        place = int(places[self._rng.randrange(len(places))])
        word = int(row[place])
        return 32 * place + self._rng.choice([bit for bit in range(32) if word >> bit & 1])


def _words(ids: Iterable[int], size: int) -> NDArray[np.uint32]:
    """Return a mask with the bits of these tokens."""
    bits = np.zeros(32 * size, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and the CPU seconds that it took."""
    start = time.thread_time()
    result = call()
    return result, time.thread_time() - start


def _check_each(times: Sequence[float], limits: CompileLimits) -> None:
    slow = sorted((seconds for seconds in times if seconds > limits.mask_time_s), reverse=True)
    if len(slow) >= MANY_SLOW or (slow and slow[0] > VERY_SLOW * limits.mask_time_s):
        raise GuideError(
            f"a mask of the guide takes {slow[0]:.2f} s, with the token after it; at most {limits.mask_time_s:g} s "
            "are allowed (CompileLimits.mask_time_s)"
        )


def _check_growth(steps: Sequence[tuple[int, float]], limits: CompileLimits, grown: float = 1.0) -> None:
    """Raise `GuideError` where steps grow with the text, to more than `grown` of `limits.mask_time_s`."""
    parts = _eighths(steps)
    if not parts:
        return
    (near, first), (far, last) = parts[0], parts[-1]
    power = _power(parts)
    expected = last * (limits.answer_tokens / far) ** min(max(power, 0.0), MAX_POWER)
    limit_s = grown * limits.mask_time_s
    if power > MIN_POWER and last > FLOOR_S and expected > limit_s:
        raise GuideError(
            f"each token of the guide takes longer than those before: {1000 * first:.1f} ms after {near:.0f} tokens, "
            f"{1000 * last:.1f} ms after {far:.0f}, and it would be more than {1000 * limit_s:g} ms "
            f"(CompileLimits.mask_time_s) within {limits.answer_tokens} (CompileLimits.answer_tokens); write "
            "the grammar so that a text can be read in one way only, and repeat by * rather than by a rule that ends "
            "with itself"
        )


def _grows(steps: Sequence[tuple[int, float]]) -> bool:
    """Return whether the time of a walk's steps seems to grow with the text, by however little."""
    parts = _eighths(steps)
    return bool(parts) and _power(parts) > MIN_POWER


def _eighths(steps: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the mean place and time of each eighth of a walk, without the first two; empty for a walk that is too
    short."""
    size = len(steps) // PARTS
    if size < MIN_PART:
        return []
    return [_mean(steps[i * size : (i + 1) * size]) for i in range(PARTS)][2:]


def _power(parts: Sequence[tuple[float, float]]) -> float:
    """Return the power of the number of tokens that time grows with: the median over neighbouring eighths. A guide
    with a costly part after a cheap one rises between two or three eighths only; real growth rises between all of
    them."""
    return statistics.median(
        math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(parts)
    )


def _mean(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the mean place and time, without the longest time."""
    times = sorted(seconds for _, seconds in steps)[:-1]
    return sum(place for place, _ in steps) / len(steps) + 1, max(sum(times) / len(times), 1e-9)
