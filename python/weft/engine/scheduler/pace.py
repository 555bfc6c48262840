"""The pace of prompts: how many of their tokens a step reads while other sequences decode.

A step that reads prompts takes longer than one that only decodes, and a user who waits for the next token sees that.
The config's `max_stall` bounds the ratio of the two times. Both are measured: the time of steps without prompts, by
batch size and number of drafts, and the time that each prompt token adds.
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
    prompts. None: no bound.

    A batch size with a number of drafts that was not measured yet gets a step without prompts first.
    """

    def __init__(self, max_stall: float | None) -> None:
        self._max_stall = max_stall
        # Seconds of a step, by batch size, a power of two, and number of drafts.
        self._decode_s: dict[tuple[int, int], deque[float]] = {}
        self._token_s: deque[float] = deque(maxlen=WINDOW)  # seconds that each prompt token added

    def note(self, num_decoding: int, num_drafts: int, num_tokens: int, seconds: float) -> None:
        """Add a measured step in which `num_decoding` sequences decoded, with `num_drafts` drafts each, and prompts
        read `num_tokens` tokens."""
        if self._max_stall is None or not num_decoding:
            return
        size = _size(num_decoding, num_drafts)
        times = self._decode_s.get(size)
        if num_tokens:
            if times is not None:
                self._token_s.append(max(seconds - median(times), 0.0) / num_tokens)
            return
        if times is None:
            times = self._decode_s[size] = deque(maxlen=WINDOW)
        times.append(seconds)

    def max_tokens(self, num_decoding: int, num_drafts: int, budget: int) -> int:
        """The number of prompt tokens for a step in which `num_decoding` sequences decode, with `num_drafts` drafts
        each; at most `budget`."""
        if self._max_stall is None or not num_decoding:
            return budget
        times = self._decode_s.get(_size(num_decoding, num_drafts))
        if times is None:
            return 0
        if not self._token_s:
            return min(budget, MIN_TOKENS)
        token_s = median(self._token_s)
        if not token_s:
            return budget
        return min(budget, max(int((self._max_stall - 1) * median(times) / token_s), MIN_TOKENS))


def _size(num_decoding: int, num_drafts: int) -> tuple[int, int]:
    return 1 << (num_decoding - 1).bit_length(), num_drafts
