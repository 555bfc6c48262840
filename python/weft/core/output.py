"""What comes of a request: its answer, whole or in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

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


@dataclass(frozen=True)
class Hypothesis:
    """An answer of a search by beams, or the beginning of one (`finish_reason` None). `log_probs[i]` is token i's, of
    the distribution that the search ranked: penalised, masked and tempered. `stopped_by` is the stop word or stop
    token that ended it."""

    token_ids: list[int]
    log_probs: list[float]
    cum_log_prob: float
    score: float
    finish_reason: FinishReason | None = None
    stopped_by: str | int | None = None


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
    of a search by beams, whose best answers so far are `hypotheses`, best first.

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
