"""Tunes the batch limits to the lengths of recent requests, by the rules of TensorRT-LLM's dynamic batch tuner."""

from __future__ import annotations

import math
from collections import deque

from weft.config import ResolvedConfig
from weft.engine.stats import Limits

BATCH_SIZES = ((144, 128), (336, 256), (672, 512), (832, 768), (1280, 1024), (1664, 1536))
"""(bound, batch): if fewer than `bound` requests fit into the cache, this batch size is recommended."""
GRANULARITY, THRESHOLD = 512, 128
"""Beyond the table, the capacity itself is recommended. It is rounded down to a multiple of `GRANULARITY` if it exceeds
that by less than `THRESHOLD`."""
MIN_TOKENS = ((2.0, 8192), (0.5, 4096), (0.0, 2048))
"""(ratio, tokens): if prompts are more than `ratio` times as long as answers, at least `tokens` tokens are recommended
for a step."""


class BatchTuner:
    """Computes the `limits` from the mean lengths of the last `tuning_window` sequences that ended with an answer. The
    limits never exceed the config's. The limit on tokens always lets a full batch decode.

    `num_pages` is the size of the KV cache, and `max_drafts` the largest number of drafts per row.
    """

    def __init__(self, config: ResolvedConfig, num_pages: int, max_drafts: int) -> None:
        self._config, self._num_pages = config, num_pages
        self._min_tokens = config.max_batch * (max_drafts + 1) + config.page_size
        self._prompts: deque[int] = deque(maxlen=config.tuning_window)
        self._answers: deque[int] = deque(maxlen=config.tuning_window)
        self.limits = Limits(config.max_batch, config.max_num_tokens)

    def note(self, num_prompt: int, num_answer: int) -> None:
        """Add the lengths of a sequence that ended, and update the limits. One without an answer does not count."""
        config = self._config
        if not (config.tunes_batch or config.tunes_tokens) or not num_answer:
            return
        self._prompts.append(num_prompt)
        self._answers.append(num_answer)
        prompt, answer = _mean(self._prompts), _mean(self._answers)
        batch, tokens = config.max_batch, config.max_num_tokens
        wanted_batch = wanted_tokens = 0
        if config.tunes_batch:
            pages_per_request = -(-(prompt + answer) // config.page_size)
            wanted_batch = recommended_batch(int(self._num_pages // pages_per_request))
            batch = min(batch, max(wanted_batch, 1))
        if config.tunes_tokens:
            wanted_tokens = recommended_tokens(batch, prompt, answer)
            tokens = min(tokens, max(wanted_tokens, self._min_tokens))
        self.limits = Limits(batch, tokens, wanted_batch, wanted_tokens)


def recommended_batch(capacity: int) -> int:
    """The recommended batch size if the cache has room for `capacity` requests."""
    for bound, batch in BATCH_SIZES:
        if capacity < bound:
            return batch
    rounded = capacity // GRANULARITY * GRANULARITY
    return rounded if capacity < rounded + THRESHOLD else capacity


def recommended_tokens(batch: int, prompt: float, answer: float) -> int:
    """The recommended number of tokens for a step. It assumes that `batch` requests decode, and that a new prompt is
    read whenever an answer ends. The sum is rounded up to a power of two, with a minimum from `MIN_TOKENS`."""
    ratio = prompt / answer
    num_tokens = int(batch * ratio + batch)
    min_tokens = next(tokens for bound, tokens in MIN_TOKENS if ratio > bound or not bound)
    return max(1 << math.ceil(math.log2(num_tokens)), min_tokens)


def _mean(lengths: deque[int]) -> float:
    return sum(lengths) / len(lengths)
