"""How one request samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from weft.core.names import SAMPLING_ELSEWHERE, explaining
from weft.core.values import Kind, check_entries, check_words
from weft.errors import InputError

OnLength = Literal["cut", "close"]

ON_LENGTH: tuple[OnLength, ...] = ("cut", "close")

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1000
MAX_LOGIT = 1e4
"""What is added to logits, or divides them, is at most this: sums over a whole answer stay finite in float32."""
SMALLEST = 2.0**-126
"""The smallest positive normal number of float32."""


@explaining(SAMPLING_ELSEWHERE)
@dataclass(frozen=True)
class SamplingParams:
    """How one request samples. Every parameter works with every guide and drafter, and mixes freely in a batch.

    In the order in which they act on the logits of a position:

    - `repetition_penalty` (0.001 to 1,000; 1: none) divides positive and multiplies negative logits of tokens in the
      prompt or the answer; `presence_penalty` and `frequency_penalty` (-10,000 to 10,000; 0: none) are subtracted from
      those in the answer, once or once for each time. `logit_bias` is added to the logits of the token ids it names,
      at most 1,000 (-10,000 to 10,000; -inf forbids). `bad_words` holds lists of token ids, whose last token is never
      drawn after the others, and texts. A text stands for such lists: as the tokenizer spells it, by itself and after
      a space, and, as long as there is room, as other tokens of the vocabulary spell the two, up to 32 each, the
      fewest tokens first. Not blocked is a text whose first token begins, or whose last token ends, outside it. With
      `no_repeat_ngram_size` (0 or None: off) no so many tokens that follow each other in the prompt or the answer are
      drawn in that order again.
    - The guide's mask. Until `min_tokens` are out no end token and no stop token id is drawn, unless the guide allows
      nothing else; stop words that are complete before do not count.
    - `temperature`, at most 10,000: 0 is greedy, and so is what is below 0.00001. Otherwise, of softmax(logits /
      temperature), `top_k` (0: all) keeps the k most likely tokens, `top_p` (1: all) of those the fewest whose share
      reaches it, `min_p` (0: all) those at least so many times as likely as the likeliest. Every token of the answer
      makes `top_p` that times `top_p_decay` (above 0 to 1; 1: none), `top_p_min` (above 0 to 1) at least; after the
      token `top_p_reset_ids` it is what it was first. At 1 and 1e-6, the defaults, it stays.

    `seed` (64 bits, with or without a sign; drawn afresh if None) decides the text completely: the same seed gives the
    same text alone or in any batch, with any drafter. The answer ends after `max_tokens`, at the model's end tokens, at
    one of `stop_token_ids`, or with one of the texts `stop`, which is not part of the answer's text. At `max_tokens` an
    answer is cut; with `on_length="close"` a guided one is whole by then: when the room that is left comes near the
    shortest end known, only what leads there is drawn. Where none is known, or it does not fit, the request fails with
    a `GuideError` before it begins. `logprobs` asks for the logarithm of each token's probability and those of the
    `logprobs` likeliest (0 to 20), as the model has them: before all of the above (`EngineConfig.logprobs` may say
    otherwise).

    `n` sequences answer the prompt, sequence i with the seed `seed + i` (None: 1, or as many as a beam search is wide).

    Raises `InputError` for a value of another type or outside its bounds, `TypeError` for a parameter that there is
    not, with what it is called here.
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
    on_length: OnLength = "cut"
    n: int | None = None
    no_repeat_ngram_size: int | None = 0
    top_p_decay: float = 1.0
    top_p_min: float = 1e-6
    top_p_reset_ids: int | None = None

    def __post_init__(self) -> None:
        for name, (kind, lowest, highest, valid) in BOUNDS.items():
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if not kind.holds(value):
                raise InputError(f"{name} is {value!r}; it must be {kind.value}: {valid}")
            if not lowest <= value <= highest:
                raise InputError(f"{name} is {value}; it must be {valid}")
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens}; it must be 0 to max_tokens, {self.max_tokens}"
            )
        check_on_length(self.on_length)
        if not isinstance(self.stop, str):
            check_entries("stop", self.stop, Kind.TEXT)
        check_words("stop", self.stop_words)
        check_entries("stop_token_ids", self.stop_token_ids, Kind.INTEGER)
        check_words("bad_words", self.bad_words)
        self._check_bias()

    @property
    def changes_top_p(self) -> bool:
        """Whether `top_p` changes from token to token."""
        return self.top_p_decay != 1 or self.top_p_min != 1e-6

    @property
    def stop_words(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _check_bias(self) -> None:
        bias = self.logit_bias if self.logit_bias is not None else {}
        if not isinstance(bias, Mapping):
            raise InputError(f"logit_bias is {bias!r}; it must map token ids to numbers")
        if len(bias) > MAX_LOGIT_BIAS:
            raise InputError(f"logit_bias names {len(bias)} tokens; it may name {MAX_LOGIT_BIAS}")
        for token, value in bias.items():
            if not Kind.INTEGER.holds(token):
                raise InputError(f"logit_bias names token {token!r}; token ids are whole numbers")
            allowed = Kind.NUMBER.holds(value) and (value == -math.inf or abs(value) <= MAX_LOGIT)
            if not allowed:
                raise InputError(
                    f"logit_bias of token {token} is {value!r}; it must be a number, -10000 to 10000, or -inf"
                )


BOUNDS: dict[str, tuple[Kind, float, float, str]] = {
    "max_tokens": (Kind.INTEGER, 1, 2**31 - 1, "at least 1 (and below 2**31)"),
    "min_tokens": (Kind.INTEGER, 0, 2**31 - 1, "0 to max_tokens"),
    "temperature": (Kind.NUMBER, 0, MAX_LOGIT, "0 (greedy) to 10000"),
    "top_k": (Kind.INTEGER, 0, 2**31 - 1, "0 (all) or a positive number of tokens (below 2**31)"),
    "top_p": (Kind.NUMBER, SMALLEST, 1, "above 0 (from 2**-126 on) and at most 1 (all)"),
    "min_p": (Kind.NUMBER, 0, 1, "0 (all) to 1"),
    "repetition_penalty": (Kind.NUMBER, 1e-3, 1e3, "0.001 to 1000 (1: none)"),
    "presence_penalty": (Kind.NUMBER, -MAX_LOGIT, MAX_LOGIT, "-10000 to 10000 (0: none)"),
    "frequency_penalty": (Kind.NUMBER, -MAX_LOGIT, MAX_LOGIT, "-10000 to 10000 (0: none)"),
    "seed": (Kind.INTEGER, -(2**63), 2**64 - 1, "64 bits, signed or unsigned (or None: drawn afresh)"),
    "logprobs": (Kind.INTEGER, 0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS} (or None: none)"),
    "n": (Kind.INTEGER, 1, 2**31 - 1, "1 or more sequences (or None: 1)"),
    "no_repeat_ngram_size": (Kind.INTEGER, 0, 2**31 - 1, "0 (off) or a number of tokens (below 2**31)"),
    "top_p_decay": (Kind.NUMBER, SMALLEST, 1, "above 0 (from 2**-126 on) and at most 1 (none)"),
    "top_p_min": (Kind.NUMBER, SMALLEST, 1, "above 0 (from 2**-126 on) and at most 1"),
    "top_p_reset_ids": (Kind.INTEGER, 0, 2**31 - 1, "a token id (or None: none)"),
}
"""Kind, lowest, highest, and how messages say the two, of each parameter that is one number."""

OPTIONAL = {"seed", "logprobs", "n", "no_repeat_ngram_size", "top_p_reset_ids"}


def check_on_length(value: object) -> None:
    """Raise `InputError` for what is no way to end at the limit."""
    if value not in ON_LENGTH:
        raise InputError(f'on_length is {value!r}; it must be "cut" or "close"')
