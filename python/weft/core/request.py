"""A `Request`: one prompt, with all parameters of its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from weft.config import MAX_DRAFT_TOKENS, Lookahead
from weft.core import SamplingParams, ValueKind, is_encodable
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
    """The tensors that a request returns.

    context_logits, generation_logits: whether it returns raw logits of the prompt, and of the answer.
    names, context_names: marked outputs of the model at the positions of the answer, and of the prompt.
    """

    context_logits: bool = False
    generation_logits: bool = False
    names: tuple[str, ...] = ()
    context_names: tuple[str, ...] = ()

    @cached_property
    def generated(self) -> tuple[str, ...]:
        """Names of the tensors to gather at the answer's positions."""
        return ((LOGITS,) if self.generation_logits else ()) + self.names

    @cached_property
    def context(self) -> tuple[str, ...]:
        """Names of the tensors to gather at the prompt's positions. A request with any of them prefills its whole
        prompt, because cached pages hold no outputs."""
        return ((LOGITS,) if self.context_logits else ()) + self.context_names


NOTHING = Gather()


@dataclass(frozen=True)
class PenaltyRule:
    """The tokens that a request's penalties count, and the order in which they apply. By default presence and frequency
    penalties count the answer only, all penalties apply to the model's logits, and the bias is added after them.

    With `counts_prompt`, presence and frequency penalties also count the prompt, without its first
    `prompt_ignore_length` tokens; repetition penalties always count all of it. With `after_temperature`, the bias is
    added first, and presence and frequency penalties are subtracted from logits / temperature (at temperature 0, as at
    1). Both together are TensorRT-LLM's behaviour. Raises `InputError` unless the length is a whole number, 0 or more.
    """

    counts_prompt: bool = False
    prompt_ignore_length: int = 0
    after_temperature: bool = False

    def __post_init__(self) -> None:
        length = self.prompt_ignore_length
        if not (ValueKind.INTEGER.holds(length) and length >= 0):
            raise InputError(f"prompt_ignore_length is {length!r}; it must be 0 or a number of tokens")

    def counted(self, prompt: Sequence[int]) -> Sequence[int]:
        """The tokens of a prompt that presence and frequency penalties count."""
        return prompt[self.prompt_ignore_length :] if self.counts_prompt else ()


OWN_PENALTIES = PenaltyRule()


@dataclass(frozen=True)
class TokenRules:
    """A request's sampling parameters in token ids.

    `bad_words` must not be completed. `ends` are forbidden before `min_tokens` tokens. `bias` float32 [V] is added to
    the logits, besides `logit_bias`: finite numbers, or -inf, which forbids a token. Finite logits stay finite.
    `penalties` defines how penalties apply. Raises `InputError` for more tokens than a slot holds, and for a bias of
    NaN or +inf."""

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
    """A front's names, for error messages, of a request's fields and of the settings that limit them.

    `no_beams` is the advice for avoiding beams. `config` is the class whose fields the caller can set ("": the caller
    cannot configure the engine). `settings` maps fields of `EngineConfig` and `ClientLimits` to the front's names,
    where these differ.
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
        """The front's name for a setting."""
        return self.settings.get(field, field).rpartition(".")[2]

    def or_raise(self, field: str) -> str:
        """The end of a hint, ", or raise ..."; "" for a caller who cannot change the setting."""
        if not self.config:
            return ""
        name = self.settings.get(field, field)
        return f", or raise {name if '.' in name else f'{self.config}.{name}'}"

    def or_set(self, field: str, value: object = True) -> str:
        """The end of a sentence, "; make the engine with ..."; "" for a caller who cannot change the setting."""
        if not self.config:
            return ""
        return f"; make the engine with {self.config}({self.label(field)}={value!r})"


OWN_NAMES = FieldNames()


class StopWords(Protocol):
    """Watches the text of a sequence for stop words."""

    def feed(self, token: int) -> str | None:
        """Add the next token; return the stop word that it completes, or None."""


@runtime_checkable
class BeamWords(Protocol):
    """Watches the text of a beam for stop words."""

    def feed(self, token: int) -> str | None:
        """Add the next token; return the stop word that it completes, or None."""

    def fork(self) -> BeamWords:
        """A copy that has seen the same tokens."""


def no_stop_words() -> None:
    """The watcher of a request without stop words: None."""


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt and all parameters of its answer, the same for every front. Immutable; it holds no progress.

    - `prompt` is text or token ids. `guide` constrains the answer; it may be the future of a compiled guide.
    - `sampling.n` sequences answer the prompt or, with `beam`, the best answers of a beam search.
    - `priority`, 0 to 1: requests of a higher priority are scheduled first. Among equals, clients (`client_id`) take
      turns. After `timeout_s` seconds the request ends with "timeout" and its partial answer.
    - `given` is the expected answer (text or token ids): drafts for `Speculation.given()`. `max_drafts` limits the
      drafts of an iteration (None: the engine's limit; 0: none). With `only_given` the answer is only compared with
      `given`: it ends with "length" at the first token that differs from it or follows it.
      `lookahead` sets sizes of lookahead decoding, for `Speculation.lookahead()`: at most the engine's (None: the
      engine's).
    - `processor` changes the logits. `gather` names the tensors to return. `retention` sets how long its pages stay
      cached. Only requests with the same `cache_salt` (a text of 1 to 256 characters) share cached pages.
    - `stop_words` (texts or lists of token ids) replace `sampling.stop`; `end_ids` replace the model's end tokens.
      `bias` [vocab_size] is added to the logits: finite numbers, or -inf, which forbids a token. `penalties` defines
      which tokens the penalties of `sampling` count, and when they apply.
    - With `streams`, every iteration that adds tokens gives a delta; otherwise only the end of a sequence does.
    - `prompt_text` is the text of the prompt, for `Output.prompt`; None if only its token ids are known.
    - `names` are the front's names for error messages. `tag` belongs to the front; the engine does not use it.
      `refusal` is the error with which the front refuses the request: it ends with this error before it begins.

    Preparation (`InputProcessor.prepare`) converts `prompt` and `given` to token ids of the model. It sets
    `prompt_text`, `rules`, the sampling parameters in token ids, and `watch_stop_words`, which makes a watcher for each
    sequence. Engines take prepared requests only. A caller with only token ids may set `is_prepared` itself.

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
    lookahead: Lookahead | None = None
    processor: LogitsProcessor | None = None
    gather: Gather = NOTHING
    retention: Retention | None = None
    cache_salt: str | None = None
    stop_words: Sequence[str | Sequence[int]] | None = None
    end_ids: frozenset[int] | None = None
    bias: Tensor | None = None
    penalties: PenaltyRule = OWN_PENALTIES
    streams: bool = False
    prompt_text: str | None = None
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
        if limit is not None and not (ValueKind.INTEGER.holds(limit) and 0 <= limit <= MAX_DRAFT_TOKENS):
            raise InputError(
                f"max_drafts is {limit!r}; it must be 0 (none) to {MAX_DRAFT_TOKENS}, or None for the engine's"
            )
        if not isinstance(self.lookahead, Lookahead | None):
            raise InputError(
                f"lookahead is {self.lookahead!r}; it must be a Lookahead, or None for the engine's sizes"
            )
        if self.given and limit == 0:
            raise InputError(f"{self.names.given} is drafted, but max_drafts is 0; leave one of the two out")
        if self.beam is not None and (self.given or limit or self.lookahead):
            raise InputError(
                f"beams are not drafted; leave out {self.names.given} and max_drafts, or the beams"
            )

    @property
    def num_sequences(self) -> int:
        """The number of sequences in the engine: one for each answer, or one for all beams; 0 for a refused request."""
        if self.refusal is not None:
            return 0
        return self.sampling.n or 1 if self.beam is None else 1

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt of a prepared request, as token ids."""
        assert not isinstance(self.prompt, str), "the request is not prepared"
        return self.prompt

    @property
    def given_ids(self) -> Sequence[int]:
        """The expected answer of a prepared request, as token ids."""
        assert not isinstance(self.given, str), "the request is not prepared"
        return self.given

    @property
    def forbidding(self) -> list[str]:
        """The names of the parameters of this request, besides the guide, that forbid tokens."""
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
        """The stop words of the answer: `stop_words`, or else those of `sampling`."""
        return self.sampling.stop_words if self.stop_words is None else self.stop_words


def _check_number(name: str, value: object, lowest: float, highest: float, valid: str) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and lowest <= value <= highest
    if not fits:
        raise InputError(f"{name} is {value!r}; it must be {valid}")
