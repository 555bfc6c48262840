"""`SamplingConfig`: the sampling and beam search of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from pydantic import PlainValidator

from weft.core import OnLength, ValueKind
from weft.errors import InputError
from weft.executor.types.fields import Count, NotNegative, Several, Share, Within, shared
from weft.executor.types.settings import Settings

_TOP_P = shared("top_p")
_SHARE = Within(_TOP_P.kind, _TOP_P.lowest, _TOP_P.highest, f"0 (not asked for), or {_TOP_P.valid}")
MAX_BEAM_WIDTH_ARRAY = 8
"""TensorRT-LLM's limit on the number of widths."""


def _top_p(value: Any) -> float:
    return 0 if ValueKind.NUMBER.holds(value) and value == 0 else _SHARE.parse(value)


class SamplingConfig(Settings):
    """The sampling and beam search of a request.

    - Sampling: `top_k` above 1 keeps the k most likely tokens; `top_p` above 0 keeps the smallest set of tokens whose
      probabilities sum to at least this value. With neither, or with a `top_k` of 1, sampling is greedy, whatever
      `temperature` (default 1) and `min_p` are. `seed` determines the sampled tokens; None is 0.
    - Order: `Request.embedding_bias` is added, then `temperature` divides the logits, then the penalties apply. With a
      `temperature` of 0 sampling is greedy.
    - Penalties: `repetition_penalty` divides positive logits of tokens in the text and multiplies negative ones.
      `presence_penalty` is subtracted once from the logit of each token in the text, `frequency_penalty` once for each
      occurrence. The text is prompt and answer; these two ignore the prompt's first `prompt_ignore_length` tokens.
    - Without `top_k`, `top_p` is multiplied by `top_p_decay` after each token, down to `top_p_min`. The token
      `top_p_reset_ids` resets it. No n-gram of `no_repeat_ngram_size` tokens occurs twice in the text.
    - `num_return_sequences` sequences are returned. Without beams, each has its own seed: `seed` + its index.

    A `beam_width` above 1 selects beam search, which returns at most that many sequences, best first:

    - The score is the sum of log-probabilities divided by the length to the power of `length_penalty` (default 0).
    - `early_stopping` says when the search ends after it has `beam_width` answers. 1 (the default): at once. 0: when no
      active beam, at its current length, scores better than the worst answer. Any other number: when no active beam
      could do so at any length.
    - `beam_search_diversity_rate` times a beam's index among the active beams is added to its continuations when the
      search compares continuations. Sums and scores do not include it.
    - `beam_width_array`: entry i is the number of beams after token i, and the last entry applies to all later tokens.
      `beam_width` is then the largest of all widths.
    - `top_k`, `top_p` and `min_p` have no effect on beams.

    Without beams, the settings of this list have no effect.

    `on_length`, weft's extension, says how a guided answer ends at `max_tokens`. "cut": it may be cut off. "close": it
    is complete by then (see `weft.SamplingParams`).

    Raises `InputError` for a value of the wrong type or out of range.
    """

    beam_width: Count = 1
    _: KW_ONLY
    top_k: Annotated[int, shared("top_k")] | None = None
    top_p: Annotated[float, PlainValidator(_top_p)] | None = None
    top_p_min: Share | None = None
    top_p_reset_ids: NotNegative | None = None
    top_p_decay: Annotated[float, Within(ValueKind.NUMBER, 1e-30, 1, "above 0 and at most 1")] | None = None
    seed: Annotated[int, shared("seed")] | None = None
    temperature: Annotated[float, shared("temperature")] | None = None
    min_tokens: Annotated[int, shared("min_tokens")] | None = None
    beam_search_diversity_rate: Annotated[float, Within(ValueKind.NUMBER, 0, 1e4, "0 to 10000")] | None = None
    repetition_penalty: Annotated[float, shared("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, shared("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, shared("frequency_penalty")] | None = None
    prompt_ignore_length: NotNegative | None = None
    length_penalty: Annotated[float, Within(ValueKind.NUMBER, 0, 100, "0 to 100")] | None = None
    early_stopping: (
        Annotated[int, Within(ValueKind.INTEGER, -(2**31), 2**31 - 1, "32 bits, signed")] | None
    ) = None
    no_repeat_ngram_size: NotNegative | None = None
    num_return_sequences: Count | None = None
    min_p: Annotated[float, shared("min_p")] | None = None
    beam_width_array: Several[Count] | None = None
    on_length: OnLength = "cut"

    def check(self) -> None:
        widths = self.beam_width_array
        if widths is not None:
            if not 0 < len(widths) <= MAX_BEAM_WIDTH_ARRAY:
                raise InputError(
                    f"beam_width_array has {len(widths)} widths; it may have 1 to {MAX_BEAM_WIDTH_ARRAY}"
                )
            vars(self)["beam_width"] = max(self.beam_width, *widths)
        if self.beam_width > 1 and (self.num_return_sequences or 1) > self.beam_width:
            raise InputError(
                f"num_return_sequences is {self.num_return_sequences}; beams of width {self.beam_width} give "
                f"1 to {self.beam_width} sequences"
            )

    @property
    def num_sequences(self) -> int:
        """The number of returned sequences: `num_return_sequences` or, if that is None, `beam_width`. A beam search
        returns them in one response."""
        return self.num_return_sequences if self.num_return_sequences is not None else self.beam_width

    @property
    def num_requests(self) -> int:
        """The number of sequences in the engine: one for each answer, or a single one for all beams."""
        return self.num_sequences if self.beam_width == 1 else 1

    @property
    def is_greedy(self) -> bool:
        """Whether sampling is greedy: the most likely token is always chosen."""
        draws = (self.top_k or 0) > 1 or ((self.top_k or 0) == 0 and (self.top_p or 0) > 0)
        return not draws or self.temperature == 0

    def parameters(self, *, with_log_probs: bool = False) -> dict[str, Any]:
        """Convert to keyword arguments for `weft.SamplingParams`, without unset ones. `with_log_probs` says whether the
        request returns log-probabilities."""
        given = {"seed": self.seed or 0, "on_length": self.on_length} | self._given(_ALWAYS)
        temperature = 1.0 if self.temperature is None else self.temperature
        if self.beam_width > 1:
            return given | {"temperature": temperature}
        if self.is_greedy:
            # The temperature does not change a greedy choice, but penalties and log-probabilities depend on it.
            depends = with_log_probs or bool(self.presence_penalty or self.frequency_penalty)
            if not depends or temperature == 0:
                return given | {"temperature": 0.0}
            return given | {"temperature": temperature, "top_k": 1} | self._given(["min_p"])
        drawn = {"temperature": temperature, "top_p": self.top_p or 1.0} | self._given(["min_p", "top_k"])
        return given | drawn | self._given([] if self.top_k else _DECAY)

    def _given(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


_ALWAYS = (
    "min_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
)
_DECAY = ("top_p_decay", "top_p_min", "top_p_reset_ids")
"""Fields that change `top_p` after each token. They apply only without `top_k`."""
