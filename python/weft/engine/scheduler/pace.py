"""The pace of prompts: how many of their tokens a step reads while other sequences decode.

A step that reads prompts takes longer than one that only decodes, and a user who waits for the next token sees that.
The config's `max_stall` bounds the ratio of the two times. Both are measured: the time of steps without prompts, by
batch size, and the time that each prompt token adds.
"""

from __future__ import annotations

from collections import deque
from statistics import median

MIN_TOKENS = 32
"""The smallest number of prompt tokens for a step. Fewer would read the weights again for little work."""
WINDOW = 9
"""The number of recent measurements whose median counts, so that a single slow step changes nothing."""


class Pace:
    """Bounds the prompt tokens of a step, so that it takes at most about `max_stall` times as long as one without
    prompts. None: no bound."""

    def __init__(self, max_stall: float | None) -> None:
        self._max_stall = max_stall
        self._decode_s: dict[int, deque[float]] = {}  # by batch size, a power of two: seconds of a step
        self._token_s: deque[float] = deque(maxlen=WINDOW)  # seconds that each prompt token added

    def note(self, num_rows: int, num_tokens: int, seconds: float) -> None:
        """Add a measured step in which `num_rows` rows decoded and prompts read `num_tokens` tokens."""
        if self._max_stall is None or not num_rows:
            return
        if not num_tokens:
            times = self._decode_s.get(_size(num_rows))
            if times is None:
                times = self._decode_s[_size(num_rows)] = deque(maxlen=WINDOW)
            times.append(seconds)
            return
        decode_s = self._decode_time(num_rows)
        if decode_s is not None:
            self._token_s.append(max(seconds - decode_s, 0.0) / num_tokens)

    def max_tokens(self, num_rows: int, budget: int) -> int:
        """The number of prompt tokens for a step in which `num_rows` rows decode, at most `budget`."""
        if self._max_stall is None or not num_rows:
            return budget
        decode_s = self._decode_time(num_rows)
        if decode_s is None or not self._token_s:
            return min(budget, MIN_TOKENS)
        token_s = median(self._token_s)
        if not token_s:
            return budget
        return min(budget, max(int((self._max_stall - 1) * decode_s / token_s), MIN_TOKENS))

    def _decode_time(self, num_rows: int) -> float | None:
        """The seconds of a step without prompts, of this batch size or the nearest one measured."""
        if not self._decode_s:
            return None
        size = _size(num_rows)
        nearest = min(self._decode_s, key=lambda known: (abs(known.bit_length() - size.bit_length()), known))
        return median(self._decode_s[nearest])


def _size(num_rows: int) -> int:
    return 1 << (num_rows - 1).bit_length()
