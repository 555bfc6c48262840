"""Walks through a compiled guide: whether its steps take too long, or take longer the further they go.

What a token costs may hide behind text that must come first, and may grow with the text before it: a grammar that can
read a text in many ways costs more with each token. So walks are some hundreds of tokens long and prefer what goes on,
forced text is followed without masks, and how time grows along a walk tells what a long answer would cost.
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
    """One walk: so many tokens that are not forced, within so many seconds of a CPU; each token is the longest (with
    -1 the shortest) of `candidates` drawn from the mask."""

    tokens: int
    time_s: float
    candidates: int
    prefers: int = 1


PLANS = (Plan(384, 0.4, 6), Plan(128, 0.2, 1), Plan(128, 0.2, 6, prefers=-1))
MAX_FORCED = 4096  # tokens of forced text in one walk
FORCED_AT_ONCE = 64
MAX_TURNS = 8  # tokens that are tried where one goes on
ROLLED_BACK = 8  # tokens, as drafts are

# One step may be slow for a reason that does not come back.
MANY_SLOW = 2
VERY_SLOW = 4.0

LONGER_S = 0.4  # of a CPU, in which walks go on whose steps seem to grow
GROWN = 0.05  # of `mask_time_s`: more no step may take that was seen to grow with the text, far into it

PARTS, MIN_PART = 8, 6  # of a walk whose growth is looked at, and steps of each
FLOOR_S = 2e-4  # what a step may take, however little it took before
MIN_POWER, MAX_POWER = 0.5, 8.0  # of the number of tokens, that time grows with


def walk(compiled: CompiledGuide, vocabulary: Vocabulary, limits: CompileLimits) -> None:
    """Walk into a guide. Raises `GuideError` where steps take longer than `limits.mask_time_s`, or would in an answer
    of `limits.answer_tokens`. What seems to grow is followed further: a guide may begin with what is cheap, and the
    little that a hundred tokens add may be much after thousands."""
    left_s = LONGER_S
    for seed, plan in enumerate(PLANS):
        done = _Walk(compiled.matcher(), vocabulary, plan, random.Random(seed))
        done.run(plan.tokens, plan.time_s)
        _check_each(done.times, limits)
        goes_on = left_s > 0 and _grows(done.steps)
        if goes_on:
            left_s -= done.run(limits.answer_tokens - plan.tokens, left_s)
            _check_each(done.times, limits)
        _check_growth(done.steps, limits, GROWN if goes_on else 1.0)


class _Walk:
    """One walk. `steps` are the number of tokens before each step, and its seconds of a CPU; `others` are the
    seconds of what else it called."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, plan: Plan, rng: random.Random) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._plan = plan
        self._rng = rng
        self._row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
        self._usable = _words(range(vocabulary.vocab_size), len(self._row))
        self._usable &= ~_words(vocabulary.end_ids, len(self._row))
        self._closing: set[int] = set()  # tokens after which there was nothing left but the end
        self._length = self._forced = 0
        self._ahead_s = 0.0  # that the mask after the last token took, which a library may keep
        self.steps: list[tuple[int, float]] = []
        self.others: list[float] = []

    def run(self, tokens: int, time_s: float) -> float:
        """Walk on, to the end of the text at most; the seconds that it took."""
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
        """Of all that was called."""
        return [*self.others, *(seconds for _, seconds in self.steps)]

    def _take_one(self) -> bool:
        """One token, the mask before it and the one after it; False at the end of the text."""
        for _ in range(MAX_TURNS):
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
            self._closing.add(token)  # another may lead further
            self._ahead_s = 0.0
            self._matcher.rollback(1)
            self._length -= 1
        return False

    def _goes_on(self) -> bool:
        """Whether anything but the end may come."""
        if self._matcher.is_terminated():
            return False
        row, self._ahead_s = self._fill()
        return bool(row.any())

    def _fill(self) -> tuple[NDArray[np.uint32], float]:
        """What may come, ends left out, and the seconds that it took."""
        self._row[:] = 0
        is_masked, seconds = timed(partial(self._matcher.fill, self._row))
        return (self._row.view(np.uint32) & self._usable if is_masked else self._usable), seconds

    def _follow_forced(self) -> None:
        """Take the tokens that must come. They are the guide's choice, so none is counted."""
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
        """A token that may come; none where only the end may."""
        places = np.flatnonzero(row)
        if not len(places):
            return None
        found = [self._draw(row, places) for _ in range(self._plan.candidates)]
        found = [token for token in found if token not in self._closing] or found[:1]
        return max(found, key=lambda token: self._plan.prefers * len(self._vocabulary.tokens[token]))

    def _draw(self, row: NDArray[np.uint32], places: NDArray[np.intp]) -> int:
        """A token of a mask. One that is among few has the better chance, which is as well: what is dear may hide
        among much that is cheap."""
        place = int(places[self._rng.randrange(len(places))])
        word = int(row[place])
        return 32 * place + self._rng.choice([bit for bit in range(32) if word >> bit & 1])


def _words(ids: Iterable[int], size: int) -> NDArray[np.uint32]:
    """A mask of tokens."""
    bits = np.zeros(32 * size, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and the seconds of a CPU that it took."""
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
    """Raises `GuideError` where steps grow with the text, to more than `grown` of what a mask may take."""
    parts = _eighths(steps)
    if not parts:
        return
    (place, first), (far, last) = parts[0], parts[-1]
    power = _power(parts)
    expected = last * (limits.answer_tokens / far) ** min(max(power, 0.0), MAX_POWER)
    most = grown * limits.mask_time_s
    if power > MIN_POWER and last > FLOOR_S and expected > most:
        raise GuideError(
            f"each token of the guide takes longer than those before: {1000 * first:.1f} ms after {place:.0f} tokens, "
            f"{1000 * last:.1f} ms after {far:.0f}, and it would be more than {1000 * most:g} ms "
            f"(CompileLimits.mask_time_s) within {limits.answer_tokens} (CompileLimits.answer_tokens); write "
            "the grammar so that a text can be read in one way only, and repeat by * rather than by a rule that ends "
            "with itself"
        )


def _grows(steps: Sequence[tuple[int, float]]) -> bool:
    """Whether the time of a walk's steps may grow with the text, however little it is."""
    parts = _eighths(steps)
    return bool(parts) and _power(parts) > MIN_POWER


def _eighths(steps: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """The mean place and time of each eighth of a walk, without the first two; none where it is too short to tell."""
    size = len(steps) // PARTS
    if size < MIN_PART:
        return []
    return [_mean(steps[i * size : (i + 1) * size]) for i in range(PARTS)][2:]


def _power(parts: Sequence[tuple[float, float]]) -> float:
    """The power of the number of tokens that time grows with. Where a guide merely has a dear part after a cheap one,
    time rises between two eighths, or three; where it grows with the text, it rises from each to the next."""
    return statistics.median(
        math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(parts)
    )


def _mean(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The mean place and time, without the longest."""
    times = sorted(seconds for _, seconds in steps)[:-1]
    return sum(place for place, _ in steps) / len(steps) + 1, max(sum(times) / len(times), 1e-9)
