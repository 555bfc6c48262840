"""Limits of a batch that follow the lengths of recent requests, by the rules of TensorRT-LLM's dynamic batch tuner."""

from __future__ import annotations

import math
from collections import deque

from weft.config import ResolvedConfig
from weft.engine.stats import Limits

BATCH_SIZES = ((144, 128), (336, 256), (672, 512), (832, 768), (1280, 1024), (1664, 1536))
"""Below so many requests that the cache holds, so many are recommended; from the last one on by `GRANULARITY`."""
GRANULARITY, THRESHOLD = 512, 128
"""Beyond the table a multiple of the first is recommended, where the cache holds less than the second more."""
LEAST_TOKENS = ((2.0, 8192), (0.5, 4096), (0.0, 2048))
"""Above so many prompt tokens for one of the answer, so many tokens of an iteration at least."""


class BatchTuner:
    """Recommends limits by the mean lengths of prompts and answers of the last `tuning_window` requests that ended.
    What is in force is never more than the engine was made for, nor less than a full batch decodes.

    `num_pages` hold the cache, `max_drafts` are drafted at most.
    """

    def __init__(self, config: ResolvedConfig, num_pages: int, max_drafts: int) -> None:
        self._config, self._num_pages = config, num_pages
        self._least = config.max_batch * (max_drafts + 1) + config.page_size
        self._prompts: deque[int] = deque(maxlen=config.tuning_window)
        self._answers: deque[int] = deque(maxlen=config.tuning_window)
        self.limits = Limits(config.max_batch, config.max_num_tokens)

    def note(self, num_prompt: int, num_answer: int) -> None:
        """A request ended that had so many tokens."""
        config = self._config
        if not (config.tunes_batch or config.tunes_tokens) or not num_answer:
            return
        self._prompts.append(num_prompt)
        self._answers.append(num_answer)
        prompt, answer = _mean(self._prompts), _mean(self._answers)
        static = self.limits_made
        batch, tokens, wanted_batch, wanted_tokens = static.max_batch, static.max_num_tokens, 0, 0
        if config.tunes_batch:
            wanted_batch = recommended_batch(
                int(self._num_pages // -(-(prompt + answer) // config.page_size))
            )
            batch = min(batch, max(wanted_batch, 1))
        if config.tunes_tokens:
            wanted_tokens = recommended_tokens(batch, prompt, answer)
            tokens = min(tokens, max(wanted_tokens, self._least))
        self.limits = Limits(batch, tokens, wanted_batch, wanted_tokens)

    @property
    def limits_made(self) -> Limits:
        """What the engine was made for."""
        return Limits(self._config.max_batch, self._config.max_num_tokens)


def recommended_batch(capacity: int) -> int:
    """Requests at once, where the cache holds `capacity` of them."""
    for most, batch in BATCH_SIZES:
        if capacity < most:
            return batch
    below = capacity // GRANULARITY * GRANULARITY
    return below if capacity < below + THRESHOLD else capacity


def recommended_tokens(batch: int, prompt: float, answer: float) -> int:
    """Tokens of an iteration in which `batch` requests decode, and as many prompts are read as answers end: the next
    power of two, or what is good for such prompts and answers."""
    ratio = prompt / answer
    overlapped = int(batch * ratio + batch)
    least = next(tokens for above, tokens in LEAST_TOKENS if ratio > above or not above)
    return max(1 << math.ceil(math.log2(overlapped)), least)


def _mean(lengths: deque[int]) -> float:
    return sum(lengths) / len(lengths)
