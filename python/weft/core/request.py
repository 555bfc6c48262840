"""A `Request`: everything that a caller can ask of the engine for one prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from weft.config import MAX_DRAFT_TOKENS, Lookahead
from weft.core import Kind, SamplingParams, is_encodable
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.prompts import Prompt
from weft.core.retention import Retention
from weft.errors import InputError, RequestError
from weft.grammar.base import CompiledGuide
from weft.grammar.guide import Guide

DEFAULT_SAMPLING = SamplingParams()
MAX_SALT = 256


MAX_BAD_WORD_TOKENS = 1024
MAX_END_TOKENS = 64
LOGITS = "logits"


@dataclass(frozen=True)
class Gather:
    """What a request wants: the raw logits of its prompt's positions and of its answer's, and outputs of the model by
    name, `names` of the answer's positions, `context_names` of the prompt's."""

    context_logits: bool = False
    generation_logits: bool = False
    names: tuple[str, ...] = ()
    context_names: tuple[str, ...] = ()

    @cached_property
    def generated(self) -> tuple[str, ...]:
        """What is wanted of the answer's positions."""
        return ((LOGITS,) if self.generation_logits else ()) + self.names

    @cached_property
    def context(self) -> tuple[str, ...]:
        """What is wanted of the prompt's positions. A request that wants any reads its whole prompt: what is found
        in pages of another request has no outputs."""
        return ((LOGITS,) if self.context_logits else ()) + self.context_names


NOTHING = Gather()


@dataclass(frozen=True)
class PenaltyRule:
    """What a request's penalties count, and when they act. By default presence and frequency penalties count the
    answer, all penalties act on the model's logits, and the bias comes after them.

    With `counts_prompt` presence and frequency penalties count the prompt, too, but for its first
    `prompt_ignore_length` tokens; repetition penalties always see all of it. With `after_temperature` the bias comes
    first, and presence and frequency penalties are taken from logits / temperature (at temperature 0: as at 1). With
    both this is what TensorRT-LLM does. Raises `InputError` for a length that is no whole number, 0 or more.
    """

    counts_prompt: bool = False
    prompt_ignore_length: int = 0
    after_temperature: bool = False

    def __post_init__(self) -> None:
        length = self.prompt_ignore_length
        if not (Kind.INTEGER.holds(length) and length >= 0):
            raise InputError(f"prompt_ignore_length is {length!r}; it must be 0 or a number of tokens")

    def counted(self, prompt: Sequence[int]) -> Sequence[int]:
        """The tokens of a prompt that presence and frequency penalties count."""
        return prompt[self.prompt_ignore_length :] if self.counts_prompt else ()


OWN_PENALTIES = PenaltyRule()


@dataclass(frozen=True)
class TokenRules:
    """What a request's sampling parameters say in token ids: `bad_words`, none of which may be completed, and `ends`,
    which may not come before `min_tokens` are out. `bias` float32 [V], any finite number or -inf, which forbids, is
    added to the logits, with `logit_bias`; what is finite stays so. `penalties` says how they act. Raises `InputError`
    for more than a slot holds, and for other biases."""

    bad_words: tuple[tuple[int, ...], ...] = ()
    ends: tuple[int, ...] = ()
    bias: Tensor | None = None
    penalties: PenaltyRule = OWN_PENALTIES

    def __post_init__(self) -> None:
        if self.bias is not None and not bool((self.bias < math.inf).all()):
            raise InputError("a bias is NaN or +inf; it must be a finite number, or -inf, which forbids")
        needed = sum(len(word) + 1 for word in self.bad_words)
        if needed > MAX_BAD_WORD_TOKENS:
            raise InputError(
                f"bad_words take {needed} tokens or more, with one for each word's end; there is room for "
                f"{MAX_BAD_WORD_TOKENS}"
            )
        if len(self.ends) > MAX_END_TOKENS:
            raise InputError(
                f"there are {len(self.ends)} end and stop token ids; there is room for {MAX_END_TOKENS}"
            )


NO_RULES = TokenRules()


@dataclass(frozen=True)
class FieldNames:
    """What error messages call a request's fields, and the settings that limit them: each front has words of its own.

    `no_beams` says how to do without beams. `config` is the class whose fields the caller can set ("": a caller who
    cannot change the engine); `settings` are its names for fields of `EngineConfig` and `ClientLimits` that it calls
    otherwise.
    """

    prompt: str = "the prompt"
    stop_words: str = "stop"
    given: str = "given"
    answers: str = "n"
    outputs: str = "additional_outputs"
    bias: str = "embedding_bias"
    no_beams: str = "use a beam width of 1"
    config: str = "EngineConfig"
    settings: Mapping[str, str] = field(default_factory=dict)

    def label(self, field: str) -> str:
        """The name of a setting."""
        return self.settings.get(field, field).rpartition(".")[2]

    def or_raise(self, field: str) -> str:
        """The end of an advice, ", or raise" a setting; nothing for a caller who cannot."""
        if not self.config:
            return ""
        name = self.settings.get(field, field)
        return f", or raise {name if '.' in name else f'{self.config}.{name}'}"

    def or_set(self, field: str, value: object = True) -> str:
        """The end of a sentence, "; make the engine with" a setting; nothing for a caller who cannot."""
        if not self.config:
            return ""
        return f"; make the engine with {self.config}({self.label(field)}={value!r})"


OWN_NAMES = FieldNames()


class StopWords(Protocol):
    """Watches a text for the words that end it."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that the text now holds, if it does."""


@runtime_checkable
class BeamWords(Protocol):
    """Watches the text of one beam for the words that end it."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that the text now holds, if it does."""

    def fork(self) -> BeamWords:
        """Another one that has seen the same tokens."""


def no_stop_words() -> None:
    """The watcher of a text that no word ends."""


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt and everything about its answer, whichever front it came through. Nothing of it has begun.

    - `prompt` is text or token ids. `guide` constrains the answer; a front that compiles ahead gives the future.
    - `sampling.n` sequences answer it, or, with `beam`, the best that a beam search finds.
    - `priority`, 0 to 1, goes first where it is higher; among equals the clients (`client_id`) take turns. After
      `timeout_s` seconds it ends with "timeout" and what there is.
    - `given` is the expected answer (text or token ids): drafts, for `Speculation.given()`. `max_drafts`
      bounds the drafts of an iteration (None: as the engine has it; 0: none). With `only_given` the answer is only
      compared with it: it ends with "length" at the first token that differs, or that comes after it.
      `ahead` are its own sizes of lookahead decoding, for `Speculation.lookahead()`: none beyond the engine's (None:
      these).
    - `processor` acts on its logits; `gather` names the tensors it wants; `retention` says how long its blocks are
      worth keeping. Only requests with the same `cache_salt` (a text of 1 to 256 characters) find them again.
    - `stop_words` (texts or lists of token ids) stand in for `sampling.stop`; `end_ids` for the model's end tokens;
      `bias` [vocab_size] is added to the logits: any finite numbers, or -inf, which forbids. `penalties` says what
      the penalties of `sampling` count, and when they act.
    - With `streams` every iteration that adds to the answer is a delta; otherwise only its end is.
    - `names` are the words of the front for error messages. `tag` belongs to the front and comes back with the
      response. `refusal` is why the front refuses the request: it ends with that before it begins.

    Preparation (`InputProcessor.prepare`) gives a request whose `prompt` and `given` are token ids of the model, with
    `rules`, the sampling parameters in token ids, and `watch_stop_words`, which makes a watcher for each sequence.
    Engines take only such; a request of token ids alone may say itself that it `is_prepared`.

    Raises `InputError` for a value that no engine takes.
    """

    prompt: Prompt
    sampling: SamplingParams = DEFAULT_SAMPLING
    guide: Guide | Future[CompiledGuide] | None = None
    beam: BeamParams | None = None
    priority: float = 0.5
    timeout_s: float | None = None
    client_id: int | None = None
    max_drafts: int | None = None
    given: Prompt = ()
    only_given: bool = False
    ahead: Lookahead | None = None
    processor: LogitsProcessor | None = None
    gather: Gather = NOTHING
    retention: Retention | None = None
    cache_salt: str | None = None
    stop_words: Sequence[str | Sequence[int]] | None = None
    end_ids: frozenset[int] | None = None
    bias: Tensor | None = None
    penalties: PenaltyRule = OWN_PENALTIES
    streams: bool = False
    names: FieldNames = OWN_NAMES
    tag: Any = None
    refusal: InputError | RequestError | None = None

    is_prepared: bool = False
    rules: TokenRules = NO_RULES
    watch_stop_words: Callable[[], StopWords | None] = no_stop_words

    def __post_init__(self) -> None:
        _check_number("priority", self.priority, 0, 1, "0 to 1; a higher one goes first")
        if self.timeout_s is not None:
            _check_number("timeout_s", self.timeout_s, 0, math.inf, "0 seconds or more, or None for no limit")
        salt = self.cache_salt
        is_text = isinstance(salt, str) and 0 < len(salt) <= MAX_SALT and is_encodable(salt)
        if salt is not None and not is_text:
            raise InputError(
                f"cache_salt is {salt!r}; it must be a text of 1 to {MAX_SALT} characters, or None"
            )
        self._check_drafts()

    def _check_drafts(self) -> None:
        limit = self.max_drafts
        if limit is not None and not (Kind.INTEGER.holds(limit) and 0 <= limit <= MAX_DRAFT_TOKENS):
            raise InputError(
                f"max_drafts is {limit!r}; it must be 0 (none) to {MAX_DRAFT_TOKENS}, or None for the engine's"
            )
        if not isinstance(self.ahead, Lookahead | None):
            raise InputError(
                f"ahead is {self.ahead!r}; it must be a Lookahead, or None for the engine's sizes"
            )
        if self.given and limit == 0:
            raise InputError(f"{self.names.given} is drafted, but max_drafts is 0; leave one of the two out")
        if self.beam is not None and (self.given or limit or self.ahead):
            raise InputError(
                f"beams are not drafted; leave out {self.names.given} and max_drafts, or the beams"
            )

    @property
    def num_sequences(self) -> int:
        """How many sequences the engine has of it: one for each answer, or one for all beams."""
        if self.refusal is not None:
            return 0
        return self.sampling.n or 1 if self.beam is None else 1

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt of a prepared request."""
        assert not isinstance(self.prompt, str), "the request is not prepared"
        return self.prompt

    @property
    def given_ids(self) -> Sequence[int]:
        """The expected answer of a prepared request."""
        assert not isinstance(self.given, str), "the request is not prepared"
        return self.given

    @property
    def forbidding(self) -> list[str]:
        """The parameters by which it forbids tokens, besides its guide."""
        sampling, bias = self.sampling, self.rules.bias
        forbids = {
            "bad_words": bool(sampling.bad_words),
            "no_repeat_ngram_size": bool(sampling.no_repeat_ngram_size),
            "logit_bias": bool(sampling.logit_bias),
            "embedding_bias": bias is not None and bool(bias.isneginf().any()),
        }
        return [name for name, is_set in forbids.items() if is_set]

    @property
    def watched_words(self) -> Sequence[str | Sequence[int]]:
        """The words that end its answer."""
        return self.sampling.stop_words if self.stop_words is None else self.stop_words


def _check_number(name: str, value: object, lowest: float, highest: float, valid: str) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and lowest <= value <= highest
    if not fits:
        raise InputError(f"{name} is {value!r}; it must be {valid}")
