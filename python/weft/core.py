"""The nouns that users and the engine share: sampling parameters, outputs and their statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from weft.errors import InputError, RequestError

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples.

    `max_tokens` bounds the answer. `temperature` 0 is greedy. `seed` (64 bits; drawn afresh if None) decides the text
    completely: the same seed gives the same text alone or in any batch, with any drafter.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must fit 64 bits, signed")


@dataclass
class OutputStats:
    """What one request cost. Times in seconds.

    `drafted_iterations` verified drafts; `accepted_drafts` of these are in the answer. `guided_valid` is None without
    a guide; else whether the grammar reached its end (False where the answer was cut).
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted_iterations: int = 0
    accepted_drafts: int = 0
    compile_s: float = 0.0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    guided_valid: bool | None = None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per iteration that verified drafts (the bonus token counts); 1.0 where nothing was drafted."""
        if not self.drafted_iterations:
            return 1.0
        return 1.0 + self.accepted_drafts / self.drafted_iterations

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the time from the request's start of prefill to its last token."""
        return self.output_tokens / self.total_s if self.total_s > 0 else 0.0


@dataclass
class Output:
    """The answer to one prompt. `drafted[i]` says whether token i was drafted and accepted."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    error: RequestError | InputError | None = None
    stats: OutputStats = field(default_factory=OutputStats)


@dataclass(frozen=True)
class Piece:
    """What one iteration added to a streamed answer. The last piece carries the whole `output`."""

    text: str
    token_ids: list[int]
    drafted: list[bool]
    output: Output | None = None
