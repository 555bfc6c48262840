"""The nouns that users and the engine share: sampling parameters, outputs and their statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from weft.errors import InputError, RequestError

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1000


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples. Every parameter works with every guide and drafter, and mixes freely in a batch.

    In the order in which they act on the logits of a position:

    - `repetition_penalty` (1: none) divides positive and multiplies negative logits of tokens in the prompt or the
      answer; `presence_penalty` and `frequency_penalty` (0: none) are subtracted from those in the answer, once or once
      for each time. `logit_bias` is added to the logits of the token ids it names, at most 1,000 (-inf forbids).
      `bad_words`, texts or lists of token ids, are never completed.
    - The guide's mask. Until `min_tokens` are out no end token and no stop token id is drawn, unless the guide allows
      nothing else; stop words that are complete before do not count.
    - `temperature` 0 is greedy. Otherwise, of softmax(logits / temperature), `top_k` (0: all) keeps the k most likely
      tokens, `top_p` (1: all) of those the fewest whose share reaches it, `min_p` (0: all) those at least so many
      times as likely as the likeliest.

    `seed` (64 bits; drawn afresh if None) decides the text completely: the same seed gives the same text alone or in
    any batch, with any drafter. The answer ends after `max_tokens`, at the model's end tokens, at one of
    `stop_token_ids`, or with one of the texts `stop`, which is not part of the answer's text. `logprobs` asks for the
    logarithm of each token's probability and those of the `logprobs` likeliest (0 to 20), as the model has them: before
    all of the above.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens}; it must be 0 to max_tokens, {self.max_tokens}"
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if not 0 <= self.top_k < 2**31:
            raise InputError(f"top_k is {self.top_k}; it must be 0 (all) or a positive number of tokens")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (all)")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is {self.min_p}; it must be 0 (all) to 1")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise InputError(f"repetition_penalty is {self.repetition_penalty}; it must be above 0 (1: none)")
        for name in ("presence_penalty", "frequency_penalty"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number (0: none)")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise InputError(f"seed is {self.seed}; it must fit 64 bits, signed")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise InputError(f"logprobs is {self.logprobs}; it must be 0 to {MAX_LOGPROBS}, or None for none")
        self._check_words()
        self._check_bias()

    @property
    def stop_words(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _check_words(self) -> None:
        if isinstance(self.bad_words, str):
            raise InputError(f"bad_words is a text; give a list: [{self.bad_words!r}]")
        for name, words in (("stop", self.stop_words), ("bad_words", self.bad_words)):
            for word in words:
                if not isinstance(word, str) and (name == "stop" or not isinstance(word, Sequence)):
                    raise InputError(f"{name} holds a {type(word).__name__}; its entries are texts")
                if not word:
                    raise InputError(f"{name} holds an empty word, which would always match; leave it out")

    def _check_bias(self) -> None:
        bias = self.logit_bias or {}
        if len(bias) > MAX_LOGIT_BIAS:
            raise InputError(f"logit_bias names {len(bias)} tokens; it may name {MAX_LOGIT_BIAS}")
        for token, value in bias.items():
            if math.isnan(value) or value == math.inf:
                raise InputError(f"logit_bias of token {token} is {value}; it must be a number or -inf")


@dataclass
class OutputStats:
    """What one request cost. Times in seconds.

    `drafted_iterations` verified drafts, all but a request's first; they gave `drafted_tokens` tokens of the answer.
    `accepted_drafts` tokens of the whole answer were drafted. `guided_valid` is None without
    a guide; else whether the grammar reached its end (False where the answer was cut).
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted_iterations: int = 0
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    compile_s: float = 0.0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    guided_valid: bool | None = None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of the answer per iteration that verified drafts; 1.0 where nothing was drafted."""
        return self.drafted_tokens / self.drafted_iterations if self.drafted_iterations else 1.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the time from the request's start of prefill to its last token."""
        return self.output_tokens / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token of the answer, and those of the likeliest tokens at its place, likeliest first."""

    logprob: float
    top: dict[int, float]


@dataclass
class Output:
    """The answer to one prompt. `drafted[i]` says whether token i was drafted and accepted.

    `stopped_by` is the stop word or stop token id that ended it, where one did; `logprobs[i]` is there for each token
    if asked for.
    """

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    logprobs: list[TokenLogprob] | None = None
    error: RequestError | InputError | None = None
    stats: OutputStats = field(default_factory=OutputStats)


@dataclass(frozen=True)
class Piece:
    """What one iteration added to a streamed answer. The last piece carries the whole `output`."""

    text: str
    token_ids: list[int]
    drafted: list[bool]
    output: Output | None = None
