"""A prompt as `LLM` was asked it: checked, with nothing begun, so that a long list costs little while it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.core import SamplingParams
from weft.engine.device.sampling import TokenRules
from weft.engine.request import StopWords
from weft.grammar.guide import Guide

LEAST_FED, FED_BATCHES = 64, 4
"""Of a list of prompts as many are begun at a time, or as many batches, if that is more."""

Rules = tuple[TokenRules, Callable[[], StopWords | None]]
"""What sampling parameters say in tokens, and what makes watchers of their stop words."""


@dataclass(frozen=True)
class Asked:
    """A prompt, and how it is to be answered."""

    tokens: list[int]
    sampling: SamplingParams
    guide: Guide | None
    rules: TokenRules
    stops: Callable[[], StopWords | None]


def num_fed(max_batch: int) -> int:
    """How many of a list are with the engine at a time: as many as keep it busy."""
    return max(LEAST_FED, FED_BATCHES * max_batch)
