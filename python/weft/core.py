"""The nouns that users and the engine share: sampling parameters, outputs and their statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from weft.errors import InputError, RequestError

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]
OnLength = Literal["cut", "close"]

ON_LENGTH: tuple[OnLength, ...] = ("cut", "close")

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1000
MAX_LOGIT = 1e4
"""What is added to logits, or divides them, is at most this: sums over a whole answer stay finite in float32."""
SMALLEST = 2.0**-126
"""The smallest positive normal number of float32."""


@dataclass(frozen=True)
class SamplingParams:
    """How one request samples. Every parameter works with every guide and drafter, and mixes freely in a batch.

    In the order in which they act on the logits of a position:

    - `repetition_penalty` (0.001 to 1,000; 1: none) divides positive and multiplies negative logits of tokens in the
      prompt or the answer; `presence_penalty` and `frequency_penalty` (-10,000 to 10,000; 0: none) are subtracted from
      those in the answer, once or once for each time. `logit_bias` is added to the logits of the token ids it names,
      at most 1,000 (-10,000 to 10,000; -inf forbids). `bad_words` holds lists of token ids, whose last token is never
      drawn behind the others, and texts. A text stands for such lists: as the tokenizer spells it, by itself and after
      a space, and, as long as there is room, as other tokens of the vocabulary spell the two, up to 32 each, the
      fewest tokens first. Not blocked is a text whose first token begins, or whose last token ends, outside it.
    - The guide's mask. Until `min_tokens` are out no end token and no stop token id is drawn, unless the guide allows
      nothing else; stop words that are complete before do not count.
    - `temperature`, at most 10,000: 0 is greedy, and so is what is below 0.00001. Otherwise, of softmax(logits /
      temperature), `top_k` (0: all) keeps the k most likely tokens, `top_p` (1: all) of those the fewest whose share
      reaches it, `min_p` (0: all) those at least so many times as likely as the likeliest.

    `seed` (64 bits; drawn afresh if None) decides the text completely: the same seed gives the same text alone or in
    any batch, with any drafter. The answer ends after `max_tokens`, at the model's end tokens, at one of
    `stop_token_ids`, or with one of the texts `stop`, which is not part of the answer's text. At `max_tokens` an answer
    is cut; with `on_length="close"` a guided one is whole by then: when the room that is left comes near the shortest
    end known, only what leads there is drawn. Where none is known, or it does not fit, the request fails with a
    `GuideError` before it begins. `logprobs` asks for the
    logarithm of each token's probability and those of the `logprobs` likeliest (0 to 20), as the model has them: before
    all of the above.

    Raises `InputError` for a value of another type or outside its bounds.
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
    def truncates(self) -> bool:
        """Whether only the likeliest tokens may be drawn, at a temperature above 0."""
        return bool(self.top_k or self.top_p < 1 or self.min_p)

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


class Kind(Enum):
    """What a parameter may be; the value is how messages say it."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"

    def holds(self, value: object) -> bool:
        """Whether `value` is of this kind. True and False are no numbers."""
        if self is Kind.TEXT:
            return isinstance(value, str)
        if isinstance(value, bool):
            return False
        return hasattr(value, "__index__") or (self is Kind.NUMBER and isinstance(value, float))

    @property
    def types(self) -> frozenset[type]:
        """Types whose values are all of this kind."""
        return _TYPES[self]


_TYPES: dict[Kind, frozenset[type]] = {
    Kind.INTEGER: frozenset({int}),
    Kind.NUMBER: frozenset({int, float}),
    Kind.TEXT: frozenset({str}),
}


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
    "seed": (Kind.INTEGER, -(2**63), 2**63 - 1, "64 bits, signed (or None: drawn afresh)"),
    "logprobs": (Kind.INTEGER, 0, MAX_LOGPROBS, f"0 to {MAX_LOGPROBS} (or None: none)"),
}
"""Kind, lowest, highest, and how messages say the two, of each parameter that is one number."""

OPTIONAL = {"seed", "logprobs"}


def check_on_length(value: object) -> None:
    """Raise `InputError` for what is no way to end at the limit."""
    if value not in ON_LENGTH:
        raise InputError(f'on_length is {value!r}; it must be "cut" or "close"')


CHUNK = 1 << 14
"""Entries of a long list that are looked at without letting other threads run."""


MAX_WORDS = 1 << 16
"""A list of words may have so many, of an engine that allows it."""


def check_entries(name: str, values: object, kind: Kind) -> None:
    """Raise `InputError` unless `values` is a sequence (no text, no bytes) whose entries are all of `kind`."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InputError(f"{name} is {values!r}; it must be a list, each entry {kind.value}")
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        if set(map(type, chunk)) <= kind.types:
            continue
        for value in chunk:
            if not kind.holds(value):
                raise InputError(f"{name} holds {value!r}; each entry must be {kind.value}")


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold it: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_words(name: str, words: object) -> None:
    """Raise `InputError` unless `words` are texts or lists of token ids, none of them empty."""
    if isinstance(words, str):
        raise InputError(f"{name} is a text; give a list: [{words!r}]")
    if not isinstance(words, Sequence) or isinstance(words, bytes):
        raise InputError(f"{name} is {words!r}; it must be a list of texts or of lists of token ids")
    if len(words) > MAX_WORDS:
        raise InputError(f"{name} has {len(words)} entries; it may have {MAX_WORDS}")
    for word in words:
        if not isinstance(word, str):
            check_entries(f"an entry of {name}", word, Kind.INTEGER)
        elif not is_encodable(word):
            raise InputError(f"{name} holds {word!r}, which is not text that UTF-8 can hold")
        if not word:
            raise InputError(f"{name} holds an empty word, which would always match; leave it out")


@dataclass(slots=True)
class OutputStats:
    """What one request cost.

    Drafts are counted in `drafted_iterations`, those that verified at least one draft of the request: of
    `proposed_drafts` drafts `accepted_drafts` are in the answer, which got `drafted_tokens` tokens from these
    iterations. A place without a draft counts as nothing, and so does a draft behind the answer's end, or behind where
    a program wrote the text anew.

    Moments are seconds of `time.perf_counter`'s clock, None for what did not happen: `submitted_at`, `guide_ready_at`
    (compiled, or refused), `scheduled_at` (it got a slot for the first time), `first_token_at` and `last_token_at` (the
    host had read them), `ended_at`. `first_turn` and `last_turn` are the engine's turns that gave the first and the
    last token.

    `reused_tokens` of the prompt were found read already. `guided_valid` is None without a guide; else whether the
    grammar reached its end (False where the answer was cut). Of a JSON schema with `strict=False` an `LLM` asks the
    `jsonschema` package about such an answer, and None is where that can't say, or not within 2 s of a CPU.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    iterations: int = 0
    drafted_iterations: int = 0
    drafted_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    reused_tokens: int = 0
    submitted_at: float = 0.0
    guide_ready_at: float | None = None
    scheduled_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    guided_valid: bool | None = None
    first_turn: int | None = None
    last_turn: int | None = None

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of the answer per iteration that verified drafts; 1.0 where nothing was drafted."""
        return self.drafted_tokens / self.drafted_iterations if self.drafted_iterations else 1.0

    @property
    def acceptance_rate(self) -> float:
        """The share of proposed drafts that were accepted, 0 to 1; 0.0 where none was proposed."""
        return self.accepted_drafts / self.proposed_drafts if self.proposed_drafts else 0.0

    @property
    def compile_s(self) -> float:
        """How long the request waited for its guide, in seconds; 0.0 without one."""
        return _seconds(self.submitted_at, self.guide_ready_at)

    @property
    def time_to_first_token_s(self) -> float:
        """From submission to the first token, in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.first_token_at)

    @property
    def total_s(self) -> float:
        """From submission to the end, in seconds; 0.0 before it."""
        return _seconds(self.submitted_at, self.ended_at)

    @property
    def tokens_per_second(self) -> float:
        """All tokens of the answer over the time from `scheduled_at` to `last_token_at`: prompt and answer, no waiting
        for guide and slot; 0.0 without a token."""
        seconds = _seconds(self.scheduled_at, self.last_token_at)
        return self.output_tokens / seconds if seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """The tokens behind the first over the time from `first_token_at` to `last_token_at`; 0.0 where there are
        none."""
        seconds = _seconds(self.first_token_at, self.last_token_at)
        return (self.output_tokens - 1) / seconds if seconds else 0.0

    def note_guide_ready(self, guide: object = None) -> None:
        """The guide is there now, or its failure. The first call counts; on any thread."""
        if self.guide_ready_at is None:
            self.guide_ready_at = time.perf_counter()

    def note_scheduled(self) -> None:
        """The request got a slot now. The first call counts."""
        if self.scheduled_at is None:
            self.scheduled_at = time.perf_counter()

    def note_tokens(self, moment: float, turn: int) -> None:
        """The host read tokens of the answer at `moment`, in an engine's turn."""
        if self.first_token_at is None:
            self.first_token_at, self.first_turn = moment, turn
        self.last_token_at, self.last_turn = moment, turn


def _seconds(begin: float | None, end: float | None) -> float:
    """From one moment to a later one; 0.0 where one of the two did not happen."""
    return 0.0 if begin is None or end is None else max(end - begin, 0.0)


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token of the answer, and those of the likeliest tokens at its place, likeliest first."""

    logprob: float
    top: dict[int, float]


@dataclass(slots=True)
class Output:
    """The answer to one prompt. `drafted[i]` says whether token i was drafted and accepted.

    `stopped_by` is the stop word or stop token id that ended it, where one did; `logprobs[i]` is there for each token
    if asked for. `guide_notes` tell what of its guide was not enforced, as `CompiledGuide.notes` do: nothing, unless
    the guide was made with `strict=False`.

    Tensors are the model's, raw, on the host, for requests that gather them: `generation_logits` [tokens, V], row i
    those that token i was sampled from, `context_logits` [prompt, V] those behind each token of the prompt, and
    `additional` outputs by name, [tokens, ...] alike; of the prompt, [prompt, ...], as "context_" and the name.

    Of a guide that is a program, once the answer has ended, also with an error: `program_log`, what its steps for these
    tokens wrote, the last `WasmLimits.log_bytes` bytes of it; and `program_variables`, what the request's sequences
    share, `max_variables` and `variable_bytes` at most. None of any other guide, where the program had not begun, and
    of a search by beams.
    """

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    logprobs: list[TokenLogprob] | None = None
    generation_logits: Tensor | None = None
    context_logits: Tensor | None = None
    additional: dict[str, Tensor] = field(default_factory=dict)
    program_log: str | None = None
    program_variables: dict[str, bytes] | None = None
    error: RequestError | InputError | None = None
    guide_notes: tuple[str, ...] = ()
    stats: OutputStats = field(default_factory=OutputStats)


@dataclass(frozen=True)
class Piece:
    """What one iteration added to a streamed answer. The last piece carries the whole `output`."""

    text: str
    token_ids: list[int]
    drafted: list[bool]
    output: Output | None = None
