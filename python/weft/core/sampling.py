"""Sampling parameters of a request."""

from __future__ import annotations

import math
from collections import abc
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from weft.core.names import SAMPLING_HINTS, with_hints
from weft.core.values import Checked, ValueKind, check_entries, check_words, number, whole
from weft.errors import InputError

OnLength = Literal["cut", "close"]

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1000
MAX_LOGIT = 1e4
"""The largest number that is added to logits or divides them: sums over a whole answer stay finite in float32."""

_MAX_INT = 2**31 - 1
_SMALLEST = 2.0**-126  # the smallest positive normal number of float32
_SHARE = "above 0 (from 2**-126 on) and at most 1"
_PENALTY = number(-MAX_LOGIT, MAX_LOGIT, "-10000 to 10000 (0: none)")

NOT_FOR_BEAMS = "beams are not sampled"
"""Marks a parameter of the draw in its annotation. Beam search refuses values other than the default."""

CHANGES_LOGITS = "changes logits by the text so far"
"""Marks a parameter in its annotation. With a value other than the default, the device keeps the request's text."""


def _check_bias(name: str, bias: Any) -> None:
    if not isinstance(bias, abc.Mapping):
        raise InputError(f"{name} is {bias!r}; it must map token ids to numbers")
    if len(bias) > MAX_LOGIT_BIAS:
        raise InputError(f"{name} names {len(bias)} tokens; it may name {MAX_LOGIT_BIAS}")
    for token, value in bias.items():
        if not ValueKind.INTEGER.holds(token):
            raise InputError(f"{name} names token {token!r}; token ids are whole numbers")
        if not (ValueKind.NUMBER.holds(value) and (value == -math.inf or abs(value) <= MAX_LOGIT)):
            raise InputError(
                f"{name} of token {token} is {value!r}; it must be a number, -10000 to 10000, or -inf"
            )


def _check_stop(name: str, stop: Any) -> None:
    if not isinstance(stop, str):
        check_entries(name, stop, ValueKind.TEXT)
    check_words(name, (stop,) if isinstance(stop, str) else stop)


def _check_ids(name: str, ids: object) -> None:
    check_entries(name, ids, ValueKind.INTEGER)


@with_hints(SAMPLING_HINTS)
@dataclass(frozen=True)
class SamplingParams(Checked):
    """The sampling parameters of one request. Every parameter works with every guide and drafter, and requests with
    different parameters share a batch.

    The fronts derive a field whose check is a `Range`: it is an option of `weft generate`, whose help is the first
    paragraph of its docstring, and a field of the server's routes.

    The logits of a position pass through these rules, in this order:

    1. `repetition_penalty`, `presence_penalty`, `frequency_penalty`, `logit_bias`, `bad_words` and
       `no_repeat_ngram_size`.
    2. The guide's mask, and `min_tokens`.
    3. `temperature`, `top_k`, `top_p` and `min_p`.

    Raises `InputError` for a value of another type or out of bounds. Raises `TypeError` for an unknown parameter, with
    weft's name for it if there is one.
    """

    max_tokens: Annotated[int, whole(1, _MAX_INT, "at least 1 (and below 2**31)")] = 256
    """The largest number of tokens in the answer."""

    min_tokens: Annotated[int, whole(0, _MAX_INT, "0 to max_tokens")] = 0
    """The smallest number of tokens in the answer.

    Before that, end tokens and stop tokens are not sampled, unless the guide allows no other token, and stop words do
    not end the answer."""

    temperature: Annotated[float, number(0, MAX_LOGIT, "0 (greedy) to 10000")] = 0.0
    """Divides the logits before the softmax. 0, and any value below 0.00001, is greedy."""

    top_k: Annotated[
        int, whole(0, _MAX_INT, "0 (all) or a positive number of tokens (below 2**31)"), NOT_FOR_BEAMS
    ] = 0
    """Keeps the k most likely tokens. 0: all."""

    top_p: Annotated[float, number(_SMALLEST, 1, f"{_SHARE} (all)"), NOT_FOR_BEAMS] = 1.0
    """Keeps the smallest set of most likely tokens, among those of `top_k`, whose probabilities reach this sum. 1:
    all."""

    min_p: Annotated[float, number(0, 1, "0 (all) to 1"), NOT_FOR_BEAMS] = 0.0
    """Keeps the tokens with at least this fraction of the most likely token's probability. 0: all."""

    repetition_penalty: Annotated[float, number(1e-3, 1e3, "0.001 to 1000 (1: none)"), CHANGES_LOGITS] = 1.0
    """Divides positive logits of tokens in the prompt or the answer, and multiplies negative ones. 1: none."""

    presence_penalty: Annotated[float, _PENALTY, CHANGES_LOGITS] = 0.0
    """Is subtracted from the logits of tokens that occur in the answer."""

    frequency_penalty: Annotated[float, _PENALTY, CHANGES_LOGITS] = 0.0
    """Is subtracted from the logit of a token once for each occurrence in the answer."""

    logit_bias: Annotated[abc.Mapping[int, float], _check_bias] | None = None
    """Maps token ids, at most 1,000, to numbers that are added to their logits: -10,000 to 10,000, or -inf, which
    forbids the token."""

    bad_words: Annotated[abc.Sequence[str | abc.Sequence[int]], check_words] = ()
    """Texts and lists of token ids that the answer must not contain. The last token of a list is never sampled after
    the others. A text stands for several lists: the tokenizer's spelling of the text alone and after a space, and up to
    32 other spellings of each, the shortest first, while there is room. A text is not blocked if its first token begins
    before it, or its last token ends after it."""

    stop: Annotated[str | abc.Sequence[str], _check_stop] = ()
    """Texts that end the answer. The answer's text does not include the stop word."""

    stop_token_ids: Annotated[abc.Sequence[int], _check_ids] = ()
    """Tokens that end the answer, besides the model's end tokens."""

    seed: (
        Annotated[int, whole(-(2**63), 2**64 - 1, "64 bits, signed or unsigned (or None: drawn afresh)")]
        | None
    ) = None
    """The same seed gives the same text, in any batch and with any drafter. By default it is random.

    It has 64 bits, signed or unsigned. None: a random seed."""

    logprobs: Annotated[int, whole(0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS} (or None: none)")] | None = None
    """Returns the log-probability of each token and of this many of the most likely tokens. They are the model's,
    before all of the rules above, unless `EngineConfig.logprobs` selects another distribution. None: none."""

    on_length: OnLength = "cut"
    """How an answer ends at `max_tokens`. `"cut"`: at any token. `"close"`: a guided answer is complete by then. When
    the tokens left come close to the shortest known ending, only tokens that lead to that ending are allowed. If no
    ending is known, or none fits, the request fails with a `GuideError` before it begins."""

    n: Annotated[int, whole(1, _MAX_INT, "1 or more sequences (or None: 1)")] | None = None
    """The number of sequences; sequence i has the seed `seed + i`. None: 1, or the width of a beam search."""

    no_repeat_ngram_size: (
        Annotated[int, whole(0, _MAX_INT, "0 (off) or a number of tokens (below 2**31)"), CHANGES_LOGITS]
        | None
    ) = 0
    """No n-gram of this length occurs twice in prompt and answer. 0: off.

    None means 0."""

    top_p_decay: Annotated[float, number(_SMALLEST, 1, f"{_SHARE} (none)"), NOT_FOR_BEAMS] = 1.0
    """Multiplies `top_p` after each token of the answer. 1: `top_p` does not change."""

    top_p_min: Annotated[float, number(_SMALLEST, 1, _SHARE)] = 1e-6
    """`top_p` is at least this after the first token."""

    top_p_reset_ids: Annotated[int, whole(0, _MAX_INT, "a token id (or None: none)")] | None = None
    """The token that resets `top_p` to its first value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_tokens > self.max_tokens:
            raise InputError(
                f"min_tokens is {self.min_tokens}; it must be 0 to max_tokens, {self.max_tokens}"
            )

    @property
    def changes_top_p(self) -> bool:
        """Whether `top_p` changes from token to token."""
        return self.top_p_decay != 1 or self.top_p_min != 1e-6

    @property
    def stop_words(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
