"""What comes of a request: its answer, whole or in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from weft.core.stats import OutputStats
from weft.errors import InputError, RequestError, brief, shortened

if TYPE_CHECKING:
    from torch import Tensor

SAMPLED, SPLICED = "sampled", "spliced"
"""Origins of tokens that nobody drafted: drawn from the model's distribution, and put by a program."""

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a token of the answer, and those of the likeliest tokens at its place, likeliest first: as
    the model has them, or as the engine was made to give them (`EngineConfig.logprobs`). `num_allowed` tokens could be
    drawn there; guide, bad words and the like forbade the others, among them those of `top` in `forbidden`. None of a
    search by beams, nor of a token that a program put. `unnormalized` is the token's own of the whole vocabulary, where
    `logprob` may be of the `top_k` likeliest alone."""

    logprob: float
    top: dict[int, float]
    num_allowed: int | None = None
    forbidden: tuple[int, ...] = ()
    unnormalized: float | None = None


class BeamTrace(Protocol):
    """What was before the beams of a search, step by step, that its answers find by their paths: `path[i]` is the
    number of the beam that token i continued."""

    @property
    def num_bytes(self) -> int:
        """What it holds, about."""

    def generation_logits(self, path: Sequence[int]) -> Tensor | None:
        """See `Hypothesis`."""

    def additional(self, path: Sequence[int]) -> dict[str, Tensor]:
        """See `Hypothesis`."""

    def top_log_probs(self, path: Sequence[int]) -> list[dict[int, float]] | None:
        """See `Hypothesis`."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer of a search by beams, or the beginning of one (`finish_reason` None). `log_probs[i]` is token i's, of
    the distribution that the search ranked: penalised, masked and tempered. `stopped_by` is the stop word or stop
    token that ended it. `path[i]` is the number of the beam, among those that lived, that token i continued."""

    token_ids: list[int]
    log_probs: list[float]
    cum_log_prob: float
    score: float
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None
    path: list[int] = field(default_factory=list, repr=False, compare=False)
    trace: BeamTrace | None = field(default=None, repr=False, compare=False)

    @property
    def generation_logits(self) -> Tensor | None:
        """The model's raw logits [tokens, V], in its dtype, on the host: row i those that token i was chosen from,
        after this answer's own text, whichever beams that was. Put together at each call. None where they were not
        asked for."""
        return None if self.trace is None else self.trace.generation_logits(self.path)

    @property
    def additional(self) -> dict[str, Tensor]:
        """Outputs of the model by name, [tokens, ...] alike."""
        return {} if self.trace is None else self.trace.additional(self.path)

    @property
    def token_logprobs(self) -> list[TokenLogprob]:
        """The log-probabilities of its tokens, with the likeliest where they were asked for."""
        tops = self.top_log_probs or [{} for _ in self.log_probs]
        return [TokenLogprob(value, top) for value, top in zip(self.log_probs, tops, strict=True)]

    @property
    def top_log_probs(self) -> list[dict[int, float]] | None:
        """At each token the likeliest ones, likeliest first, with their log-probabilities, of the distribution of
        `log_probs`. Tokens that could not be chosen are left out. None where they were not asked for."""
        return None if self.trace is None else self.trace.top_log_probs(self.path)


@dataclass(slots=True, repr=False)
class Output:
    """The answer to one prompt. `origins[i]` says how token i came: "sampled"; drafted and accepted, by the name of
    what drafted it ("eagle3", "forced", ...); or "spliced", put by a program.

    `stopped_by` is the stop word or stop token id that ended it, where one did; `logprobs[i]` is there for each token
    if asked for. `guide_notes` tell what of its guide was not enforced, as `CompiledGuide.notes` do: nothing, unless
    the guide was made with `strict=False`.

    Tensors are the model's, raw, on the host, for requests that gather them: `generation_logits` [tokens, V], row i
    those that token i was sampled from, `context_logits` [prompt, V] those after each token of the prompt, and
    `additional` outputs by name, [tokens, ...] alike; of the prompt, [prompt, ...], as "context_" and the name.

    Of a guide that is a program, once the answer has ended, also with an error: `program_log`, what its steps for these
    tokens wrote, the last `WasmLimits.log_bytes` bytes of it; and `program_variables`, what the request's sequences
    share, `max_variables` and `variable_bytes` at most. None of any other guide, where the program had not begun, and
    of a search by beams, whose best answers so far are `hypotheses`, best first. Once it has ended, tensors of the
    answer are those of the best, and the likeliest tokens in `logprobs` are of the distribution that was ranked.

    Where several sequences were asked for, `outputs` are all of them, and this is the first; of a beam search they are
    the answers found, best first.
    """

    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
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
    hypotheses: list[Hypothesis] = field(default_factory=list)
    others: list[Output] = field(default_factory=list)

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
        """Every sequence of the answer, this one first."""
        return [self, *self.others]

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log-probabilities; None where they were not asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


@dataclass(frozen=True)
class Piece:
    """What one iteration added to a streamed answer, to its sequence `index` where there are several. The last piece
    carries the whole `output`. `origins` are as in `Output`."""

    text: str
    token_ids: list[int]
    origins: list[str]
    output: Output | None = None
    index: int = 0

    @property
    def drafted(self) -> list[bool]:
        """Whether each of its tokens was drafted and accepted."""
        return were_drafted(self.origins)


def were_drafted(origins: list[str]) -> list[bool]:
    """Which of these tokens were drafted."""
    return [origin not in (SAMPLED, SPLICED) for origin in origins]
