"""The answer to a request, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from weft.core.stats import OutputStats
from weft.errors import InputError, RequestError, brief, shortened

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED, SPLICED = "sampled", "spliced"
"""Origins of tokens that were not drafted: drawn from the model's distribution, or written by a program."""

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probabilities at one token of an answer, from the distribution that `EngineConfig.logprobs` names."""

    logprob: float
    """That of the token."""

    top: dict[int, float]
    """Those of the likeliest tokens at its position by token id, likeliest first."""

    num_allowed: int | None = None
    """How many tokens could be drawn here; guide, bad words and other rules forbade the rest. None for beams, and for a
    token that a program wrote."""

    forbidden: tuple[int, ...] = ()
    """Tokens of `top` that could not be drawn."""

    unnormalized: float | None = None
    """The log-probability of the token within the whole vocabulary, if `logprob` is within the `top_k` likeliest."""


class BeamTrace(Protocol):
    """What a beam search has recorded at each step. An answer finds its own by its path: `path[i]` is the number of the
    beam that token i continued."""

    @property
    def num_bytes(self) -> int:
        """The approximate size of the record."""

    def generation_logits(self, path: Sequence[int]) -> Tensor | None:
        """See `Hypothesis`."""

    def additional(self, path: Sequence[int]) -> dict[str, Tensor]:
        """See `Hypothesis`."""

    def top_log_probs(self, path: Sequence[int]) -> list[dict[int, float]] | None:
        """See `Hypothesis`."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer of a beam search, or the beginning of one."""

    token_ids: list[int]
    log_probs: list[float]
    """Those of the tokens, from the distribution that the search ranks: after penalties, mask and temperature."""

    cum_log_prob: float
    score: float
    finish_reason: FinishReason | None = None
    """None while the search goes on."""

    stopped_by: str | int | None = None
    """The stop word or stop token that ended it."""

    path: list[int] = field(default_factory=list, repr=False, compare=False)
    """For each token, the number of the beam that it continued, among the beams that were alive."""

    trace: BeamTrace | None = field(default=None, repr=False, compare=False)

    @property
    def generation_logits(self) -> Tensor | None:
        """The model's raw logits [tokens, V], in the model's dtype, on the host; token i was chosen from row i. Each
        call collects the rows from the beams that the answer was part of. None unless the request gathers them."""
        return None if self.trace is None else self.trace.generation_logits(self.path)

    @property
    def additional(self) -> dict[str, Tensor]:
        """Marked outputs of the model by name, [tokens, ...] each."""
        return {} if self.trace is None else self.trace.additional(self.path)

    @property
    def token_logprobs(self) -> list[TokenLogprob]:
        """The log-probabilities of its tokens, with the likeliest tokens if the request wants them."""
        tops = self.top_log_probs or [{} for _ in self.log_probs]
        return [TokenLogprob(value, top) for value, top in zip(self.log_probs, tops, strict=True)]

    @property
    def top_log_probs(self) -> list[dict[int, float]] | None:
        """For each token the likeliest tokens at its position with their log-probabilities, likeliest first, from the
        distribution of `log_probs`. Tokens that could not be chosen are left out. None if the request wants none."""
        return None if self.trace is None else self.trace.top_log_probs(self.path)


@dataclass(slots=True, repr=False)
class Output:
    """The answer to one prompt. With several sequences, this is the first of `outputs`; of a beam search, the best."""

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """How each token came about: "sampled"; drafted and accepted, by the name of the drafter ("eagle3", "forced", ...);
    or "spliced", written by a program."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    """The stop word or the id of the stop token that ended the answer, if one did."""

    logprobs: list[TokenLogprob] | None = None
    """For each token, if the request wants them. After a beam search, `top` is from the distribution that it ranks."""

    generation_logits: Tensor | None = None
    """The model's raw logits [tokens, V] on the host, if the request gathers them; token i was sampled from row i."""

    context_logits: Tensor | None = None
    """The model's raw logits [prompt, V] on the host after each token of the prompt, if the request gathers them."""

    additional: dict[str, Tensor] = field(default_factory=dict)
    """Marked outputs of the model that the request gathers, by name: [tokens, ...] each; those of the prompt,
    [prompt, ...], under "context_" and the name."""

    program_log: str | None = None
    """What the steps of a WebAssembly program wrote for these tokens: the last `WasmLimits.log_bytes` bytes, once the
    answer has ended, also with an error. None without a program, before it has begun, and for beams."""

    program_variables: dict[str, bytes] | None = None
    """The variables that a request's sequences share, under the same conditions: at most `max_variables` and
    `variable_bytes` of `WasmLimits`."""

    error: RequestError | InputError | None = None
    guide_notes: tuple[str, ...] = ()
    """Parts of the guide that are not enforced (`CompiledGuide.notes`). Empty unless the guide has `strict=False`."""

    stats: OutputStats = field(default_factory=OutputStats)
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """The best answers of a beam search so far, best first."""

    others: list[Output] = field(default_factory=list)
    """The sequences besides this one."""

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
    def drafted(self) -> list[bool]:
        """Whether each token was drafted and accepted."""
        return were_drafted(self.origins)

    @property
    def outputs(self) -> list[Output]:
        """All sequences of the answer, this one first; of a beam search the answers found, best first."""
        return [self, *self.others]

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log-probabilities; None if the request wants none."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(frozen=True)
class Piece:
    """The part of a streamed answer that one iteration added."""

    text: str
    token_ids: list[int]
    origins: list[str]
    """As in `Output`."""

    output: Output | None = None
    """The whole answer, with its last piece."""

    index: int = 0
    """The number of the sequence that the piece belongs to."""

    @property
    def drafted(self) -> list[bool]:
        """Whether each of its tokens was drafted and accepted."""
        return were_drafted(self.origins)


def were_drafted(origins: list[str]) -> list[bool]:
    """Whether each of the tokens was drafted."""
    return [origin not in (SAMPLED, SPLICED) for origin in origins]
