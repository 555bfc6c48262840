"""Random walks through a compiled guide, to find masks that take too long, or ever longer as the text grows.

A slow mask may come only after a certain prefix. The cost may also grow with the text: in an ambiguous grammar each
token may cost more than the last. So a walk takes some hundreds of tokens, prefers tokens after which the text goes on,
and accepts forced text without masks. The growth of the step times predicts the cost of a long answer.
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
class WalkParams:
    """The parameters of one walk: at most `tokens` tokens, forced ones not counted, and `time_s` CPU seconds. Each
    token is the longest (with `is_short` the shortest) of `candidates` tokens drawn from the mask."""

    tokens: int
    time_s: float
    candidates: int
    is_short: bool = False


WALKS = (WalkParams(384, 0.4, 6), WalkParams(128, 0.2, 1), WalkParams(128, 0.2, 6, is_short=True))
MAX_FORCED = 4096  # tokens of forced text in one walk
FORCED_AT_ONCE = 64
MAX_ATTEMPTS = 8  # tokens tried at one position, to find one after which the text goes on
ROLLED_BACK = 8  # tokens rolled back at the end of a walk, to time a rollback of rejected drafts

# A single slow step may be noise, such as a page fault. Two slow steps, or a very slow one, count.
MANY_SLOW = 2
VERY_SLOW = 4.0  # times `mask_time_s`

LONGER_S = 0.4  # CPU seconds for continuing walks whose step times seem to grow, all walks together
GROWN = 0.05  # for a continued walk: the largest predicted step time, as a share of `mask_time_s`

PARTS, MIN_PART = 8, 6  # a walk is split into 8 parts for the regression, of at least 6 steps each
FLOOR_S = 2e-4  # a step below this time is never refused for growth
MIN_POWER, MAX_POWER = (
    0.5,
    8.0,
)  # time ~ tokens ** power: below the minimum it is not growth; above the maximum it is noise and is clamped


def walk(compiled: CompiledGuide, vocabulary: Vocabulary, limits: CompileLimits) -> None:
    """Walk through a guide. Raises `GuideError` if steps take longer than `limits.mask_time_s`, or would take longer
    within an answer of `limits.answer_tokens` tokens."""
    left_s = LONGER_S
    for seed, params in enumerate(WALKS):
        current = _Walk(compiled.matcher(), vocabulary, params, random.Random(seed))
        current.run(params.tokens, params.time_s)
        _check_each(current.times, limits)
        # Growth that is small after a hundred tokens may be large after thousands, so such a walk goes on.
        goes_on = left_s > 0 and _grows(current.steps)
        if goes_on:
            left_s -= current.run(limits.answer_tokens - params.tokens, left_s)
            _check_each(current.times, limits)
        _check_growth(current.steps, limits, GROWN if goes_on else 1.0)


class _Walk:
    """One walk. `steps` has, for each step, the number of tokens before it and its CPU seconds. `others` has the CPU
    seconds of the calls for forced text, and of the rollback at the end."""

    def __init__(
        self, matcher: Matcher, vocabulary: Vocabulary, params: WalkParams, rng: random.Random
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._params = params
        self._rng = rng
        self._row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
        self._usable = _words(range(vocabulary.vocab_size), len(self._row))
        self._usable &= ~_words(vocabulary.end_ids, len(self._row))
        self._closing: set[int] = set()  # tokens after which only the end of the text could follow
        self._length = self._forced = 0
        # The CPU seconds of the mask that was filled after the last token, to see whether the text goes on. The next
        # fill of the same mask may be a cache hit in the library.
        self._previewed_s = 0.0
        self.steps: list[tuple[int, float]] = []
        self.others: list[float] = []

    def run(self, tokens: int, time_s: float) -> float:
        """Continue the walk by at most `tokens` tokens, to the end of the text, or until `time_s` CPU seconds have
        passed. Then roll the last tokens back. Returns the CPU seconds that it took."""
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
        """The CPU seconds of all steps and other calls."""
        return [*self.others, *(seconds for _, seconds in self.steps)]

    def _take_one(self) -> bool:
        """Fill the mask and accept a token after which the text goes on. Returns False if there is none."""
        for _ in range(MAX_ATTEMPTS):
            row, filling = self._fill()
            filling = max(filling, self._previewed_s)
            self._previewed_s = 0.0
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
            self._previewed_s = 0.0
            self._matcher.rollback(1)
            self._length -= 1
        return False

    def _goes_on(self) -> bool:
        """Return whether a token other than an end token may follow."""
        if self._matcher.is_terminated():
            return False
        row, self._previewed_s = self._fill()
        return bool(row.any())

    def _fill(self) -> tuple[NDArray[np.uint32], float]:
        """Fill the mask. Returns it without end tokens, and the CPU seconds that it took."""
        self._row[:] = 0
        is_masked, seconds = timed(partial(self._matcher.fill, self._row))
        return (self._row.view(np.uint32) & self._usable if is_masked else self._usable), seconds

    def _follow_forced(self) -> None:
        """Accept the forced tokens. They do not count toward the walk's limit of tokens."""
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
        """Draw a token from the mask; None if it is empty."""
        places = np.flatnonzero(row)
        if not len(places):
            return None
        drawn = [self._draw(row, places) for _ in range(self._params.candidates)]
        drawn = [token for token in drawn if token not in self._closing] or drawn[:1]
        choose = min if self._params.is_short else max
        return choose(drawn, key=lambda token: len(self._vocabulary.tokens[token]))

    def _draw(self, row: NDArray[np.uint32], places: NDArray[np.intp]) -> int:
        """Draw a word of the mask, then a bit of it. The bias toward tokens in sparse words helps, because slow tokens
        are rare among many fast ones."""
        place = int(places[self._rng.randrange(len(places))])
        word = int(row[place])
        return 32 * place + self._rng.choice([bit for bit in range(32) if word >> bit & 1])


def _words(ids: Iterable[int], size: int) -> NDArray[np.uint32]:
    """Return a mask of `size` words with the bits of these tokens."""
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
    """Raise `GuideError` if the step times grow, and are predicted to exceed `grown` times `limits.mask_time_s`."""
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
    """Return whether the step times of a walk seem to grow with the text, even if only slightly."""
    parts = _eighths(steps)
    return bool(parts) and _power(parts) > MIN_POWER


def _eighths(steps: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return the mean position and step time of each eighth of a walk. The first two are left out as warm-up. Empty if
    the walk is too short."""
    size = len(steps) // PARTS
    if size < MIN_PART:
        return []
    return [_mean(steps[i * size : (i + 1) * size]) for i in range(PARTS)][2:]


def _power(parts: Sequence[tuple[float, float]]) -> float:
    """Return the exponent p of the fit time ~ tokens ** p: the median of the slopes between neighbouring eighths. One
    slow part raises one slope and lowers the next, but real growth raises all of them."""
    return statistics.median(
        math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(parts)
    )


def _mean(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the mean position and the mean time, without the largest time as an outlier."""
    times = sorted(seconds for _, seconds in steps)[:-1]
    return sum(place for place, _ in steps) / len(steps) + 1, max(sum(times) / len(times), 1e-9)
