"""The answer to a request, whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

from weft.core.names import LOGPROB_HINTS, OUTPUT_HINTS, with_attribute_hints
from weft.core.stats import OutputStats
from weft.errors import AnswerError, InputError, RequestError, brief, shortened

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED, SPLICED = "sampled", "spliced"
"""Origins of tokens that were not drafted: sampled from the model's distribution, or written by a program."""

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@with_attribute_hints(LOGPROB_HINTS)
@dataclass(frozen=True)
class TokenLogprob:
    """The log-probabilities at one token of an answer, in the distribution that `EngineConfig.logprobs` selects."""

    logprob: float
    """The log-probability of the token."""

    top: dict[int, float]
    """Log-probabilities of the most likely tokens at this position by token id, the most likely first."""

    num_allowed: int | None = None
    """The number of tokens that were allowed here. The guide, bad words and other rules forbade the rest. None for
    beams, and for a token that a program wrote."""

    forbidden: tuple[int, ...] = ()
    """Tokens of `top` that were not allowed."""

    unnormalized: float | None = None
    """The log-probability of the token over the whole vocabulary, if `logprob` is over the `top_k` most likely
    tokens."""

    def __getitem__(self, token: object) -> NoReturn:
        """Refuse: in vLLM this object is a dict."""
        raise TypeError(f"a TokenLogprob is not a dict; {LOGPROB_HINTS['items']}")


class BeamTrace(Protocol):
    """The record of a beam search, step by step. An answer's path selects its part: `path[i]` is the number of the beam
    that token i continued."""

    @property
    def num_bytes(self) -> int:
        """The approximate size of the record in bytes."""

    def generation_logits(self, path: Sequence[int]) -> Tensor | None:
        """The raw logits of the answer with this path, as in `Hypothesis.generation_logits`."""

    def additional(self, path: Sequence[int]) -> dict[str, Tensor]:
        """Marked outputs of the model for the answer with this path, as in `Hypothesis.additional`."""

    def top_log_probs(self, path: Sequence[int]) -> list[dict[int, float]] | None:
        """The most likely tokens of the answer with this path, as in `Hypothesis.top_log_probs`."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer of a beam search, complete or in progress."""

    token_ids: list[int]
    log_probs: list[float]
    """The tokens' log-probabilities in the distribution that the search ranks: after penalties, mask and
    temperature."""

    cum_log_prob: float
    score: float
    finish_reason: FinishReason | None = None
    """None while the beam is active."""

    stopped_by: str | int | None = None
    """The stop word, or the id of the stop token, that ended the answer; None otherwise."""

    path: list[int] = field(default_factory=list, repr=False, compare=False)
    """For each token, the number of the beam that it continued, among the beams active then."""

    trace: BeamTrace | None = field(default=None, repr=False, compare=False)

    @property
    def generation_logits(self) -> Tensor | None:
        """The model's raw logits [tokens, V], in the model's dtype, on the host; token i was chosen from row i. None
        unless the request gathers them. Each access gathers the rows along the answer's path."""
        return None if self.trace is None else self.trace.generation_logits(self.path)

    @property
    def additional(self) -> dict[str, Tensor]:
        """Marked outputs of the model by name, each [tokens, ...]."""
        return {} if self.trace is None else self.trace.additional(self.path)

    @property
    def token_logprobs(self) -> list[TokenLogprob]:
        """The log-probability of each token, with the most likely tokens at its position if the request asks for
        them."""
        tops = self.top_log_probs or [{} for _ in self.log_probs]
        return [TokenLogprob(value, top) for value, top in zip(self.log_probs, tops, strict=True)]

    @property
    def top_log_probs(self) -> list[dict[int, float]] | None:
        """For each token, the log-probabilities of the most likely tokens at its position, the most likely first, in
        the distribution of `log_probs`. Forbidden tokens are left out. None unless the request asks for them."""
        return None if self.trace is None else self.trace.top_log_probs(self.path)


@dataclass(slots=True)
class TypedText:
    """The JSON text of an answer whose guide is a Python type, and the function that makes the object of it."""

    text: str
    parse: Callable[[str], Any]
    is_complete: bool
    """Whether the text reaches the end of the guide."""

    is_parsed: bool = False
    value: Any = None
    """The object, once it is parsed."""


@with_attribute_hints(OUTPUT_HINTS)
@dataclass(slots=True, repr=False)
class Output:
    """The answer to one prompt. With several sequences, this is the first of `outputs`; in a beam search, the best."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """The origin of each token: "sampled"; "spliced" if a program wrote it; or, for an accepted draft, the drafter's
    name ("eagle3", "forced", ...)."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    """The stop word, or the id of the stop token, that ended the answer; None otherwise."""

    logprobs: list[TokenLogprob] | None = None
    """One entry for each token, if the request asks for log-probabilities. In a beam search, all entries are in the
    distribution that the search ranks."""

    generation_logits: Tensor | None = None
    """The model's raw logits [tokens, V] on the host, if the request gathers them; token i was sampled from row i."""

    context_logits: Tensor | None = None
    """The model's raw logits [prompt, V] on the host after each token of the prompt, if the request gathers them."""

    additional: dict[str, Tensor] = field(default_factory=dict)
    """Marked outputs of the model that the request gathers, by name, each [tokens, ...]. Outputs at the prompt's
    positions, [prompt, ...], have "context_" in front of the name."""

    program_log: str | None = None
    """The log that a WebAssembly program wrote during the steps of these tokens: its last `WasmLimits.log_bytes` bytes.
    Set once the answer has ended, also with an error. None without a program that has started, and for beams."""

    program_variables: dict[str, bytes] | None = None
    """The program's variables, which the sequences of a request share. Set when `program_log` is set. `WasmLimits`
    bounds their number (`max_variables`) and size (`variable_bytes`)."""

    error: RequestError | InputError | None = None
    guide_notes: tuple[str, ...] = ()
    """Parts of the guide that are not enforced (`CompiledGuide.notes`). Empty unless the guide has `strict=False`."""

    stats: OutputStats = field(default_factory=OutputStats)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """The best answers of a beam search so far, the best first."""

    others: list[Output] = field(default_factory=list)
    """The outputs of the other sequences."""

    prompt: str | None = None
    """The text of the prompt; for a conversation, as the chat template renders it. None for a prompt of token ids."""

    index: int = 0
    """The position of this output in `outputs`."""

    typed: TypedText | None = field(default=None, compare=False)
    """The text that `parsed` reads. None if the guide is no Python type, and if the request failed before it began."""

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse: in vLLM a single prompt gives a list. A loop over an `Output` calls this method, too."""
        raise TypeError(
            "an Output is not a list: a single prompt or conversation gives a single Output, a list of them a list"
        )

    def __repr__(self) -> str:
        others = f", and {len(self.others)} others" if self.others else ""
        failed = (
            f", error={type(self.error).__name__}({brief(self.error)!r})" if self.error is not None else ""
        )
        return (
            f"Output(text={shortened(self.text, 200)!r}, finish_reason={self.finish_reason!r}, "
            f"{len(self.token_ids)} tokens for a prompt of {len(self.prompt_token_ids)}{others}{failed})"
        )

    @property
    def parsed(self) -> Any:
        """The object that the answer describes, if the guide is a Python type such as `Invoice` or `list[Invoice]`;
        None for other guides. Parsed at the first access.

        Raises `AnswerError` if the answer was cut, or if a validator of the type refuses it. Raises `error` for a
        failed request.
        """
        if self.error is not None:
            raise self.error
        typed = self.typed
        if typed is None:
            return None
        if not typed.is_complete:
            raise AnswerError(f"the answer is not complete, so it can't be parsed: {self._reason_for_cut()}")
        if not typed.is_parsed:
            typed.value, typed.is_parsed = typed.parse(typed.text), True
        return typed.value

    @property
    def drafted(self) -> list[bool]:
        """Whether each token is an accepted draft."""
        return were_drafted(self.origins)

    @property
    def outputs(self) -> list[Output]:
        """The outputs of all sequences, this one first. In a beam search: the outputs of its answers, the best
        first."""
        return [self, *self.others]

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log-probabilities; None unless the request asks for them."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)

    def _reason_for_cut(self) -> str:
        """Why the answer ended before its guide did, and the cure."""
        if self.stopped_by is not None:
            kind = "stop word" if isinstance(self.stopped_by, str) else "stop token"
            return f"the {kind} {self.stopped_by!r} ended it; leave it out, because the guide ends the answer"
        if self.finish_reason == "length":
            return (
                f"it was cut after {len(self.token_ids)} tokens; raise SamplingParams(max_tokens=...), or give "
                'on_length="close", which completes the JSON within max_tokens'
            )
        if self.finish_reason == "timeout":
            return "its time was over; raise timeout_s"
        return f"it ended early ({self.finish_reason})"


@dataclass(frozen=True)
class Piece:
    """The part of a streamed answer that one iteration adds, or several iterations if the caller reads late."""

    text: str
    token_ids: list[int]
    origins: list[str]
    """The origin of each token of the piece, as in `Output.origins`."""

    output: Output | None = None
    """The complete answer, with the last piece only."""

    index: int = 0
    """The number of the sequence that the piece belongs to."""

    read_partial: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """The function that makes `partial`; None if the guide is no Python type."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "partial": self.partial, "read_partial": None}

    @cached_property
    def partial(self) -> Any:
        """The object of the elements that are complete up to this piece, if the guide is a type of lists, sets or
        dicts; `list[Invoice]` gives the invoices so far. For other types None until the JSON is complete.

        Parsed at the first access, which reads the whole text so far.
        """
        return None if self.read_partial is None else self.read_partial()

    @property
    def drafted(self) -> list[bool]:
        """Whether each token is an accepted draft."""
        return were_drafted(self.origins)


def were_drafted(origins: list[str]) -> list[bool]:
    """For each origin, whether it is the name of a drafter."""
    return [origin not in (SAMPLED, SPLICED) for origin in origins]
