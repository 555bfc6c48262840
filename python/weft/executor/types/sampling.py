"""How the tokens of a request are chosen: `SamplingConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from pydantic import PlainValidator

from weft.core import Kind, OnLength
from weft.errors import InputError
from weft.executor.types.fields import Count, NotNegative, Several, Share, Within, shared
from weft.executor.types.settings import Settings

_TOP_P = shared("top_p")
_SHARE = Within(_TOP_P.kind, _TOP_P.lowest, _TOP_P.highest, f"0 (not asked for), or {_TOP_P.valid}")
MAX_BEAM_WIDTH_ARRAY = 8
"""So many widths TensorRT-LLM takes."""


def _top_p(value: Any) -> float:
    return 0 if Kind.NUMBER.holds(value) and value == 0 else _SHARE.parse(value)


class SamplingConfig(Settings):
    """How the tokens of a request are chosen.

    - A token is drawn where `top_k` or `top_p` ask for it: `top_k` above 1 keeps the k likeliest tokens, `top_p` above
      0 of those the fewest whose share reaches it. Where neither does, or with a `top_k` of 1, the likeliest token is
      taken, whatever `temperature` (default 1) and `min_p` are. `seed` decides what is drawn; None is 0.
    - `temperature` divides the logits first, after `Request.embedding_bias` was added. Then `repetition_penalty`
      divides positive logits of tokens in the text, and multiplies negative ones; `presence_penalty` and
      `frequency_penalty` are subtracted from those of its tokens, once, or once for each time. All three speak of the
      prompt and of the answer, the last two not of the prompt's first `prompt_ignore_length` tokens. A `temperature` of
      0 takes the likeliest token.
    - Without `top_k`, `top_p` is multiplied by `top_p_decay` after each token, down to `top_p_min`; it begins anew
      after the token `top_p_reset_ids`. No sequence of `no_repeat_ngram_size` tokens comes twice in the text.
    - `num_return_sequences` sequences come out; without beams each is drawn with its own seed, `seed` + its index.

    A `beam_width` above 1 searches by beams, and gives at most as many sequences, best first. They are compared by the
    sum of their log-probabilities over their length to the power of `length_penalty` (default 0). `early_stopping` says
    when the search ends once there are `beam_width` answers: 1 (the default), at once; 0, when no living beam scores
    better, as long as it is, than the worst of them; any other, when none could, however long it became.
    `beam_search_diversity_rate` times its number among the living beams is added to what a beam goes on with where
    these are compared; sums and scores do not have it. With `beam_width_array` so many beams live on after token i as
    its entry i says, and after later ones as the last; `beam_width` is then the widest of all. Beams follow the
    likeliest tokens: `top_k`, `top_p` and `min_p` have no effect on them. With one beam there is nothing for these to
    change.

    `on_length`, weft's own, is "cut" or "close": whether a guided answer may be cut at its `max_tokens`, or is whole by
    then (see `weft.SamplingParams`).

    Raises `InputError` for a value of another type, or outside its bounds.
    """

    beam_width: Count = 1
    _: KW_ONLY
    top_k: Annotated[int, shared("top_k")] | None = None
    top_p: Annotated[float, PlainValidator(_top_p)] | None = None
    top_p_min: Share | None = None
    top_p_reset_ids: NotNegative | None = None
    top_p_decay: Annotated[float, Within(Kind.NUMBER, 1e-30, 1, "above 0 and at most 1")] | None = None
    seed: Annotated[int, shared("seed")] | None = None
    temperature: Annotated[float, shared("temperature")] | None = None
    min_tokens: Annotated[int, shared("min_tokens")] | None = None
    beam_search_diversity_rate: Annotated[float, Within(Kind.NUMBER, 0, 1e4, "0 to 10000")] | None = None
    repetition_penalty: Annotated[float, shared("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, shared("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, shared("frequency_penalty")] | None = None
    prompt_ignore_length: NotNegative | None = None
    length_penalty: Annotated[float, Within(Kind.NUMBER, 0, 100, "0 to 100")] | None = None
    early_stopping: Annotated[int, Within(Kind.INTEGER, -(2**31), 2**31 - 1, "32 bits, signed")] | None = None
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
        """How many sequences come out (of beams: in one response): `num_return_sequences`, or else `beam_width`."""
        return self.num_return_sequences if self.num_return_sequences is not None else self.beam_width

    @property
    def num_requests(self) -> int:
        """How many requests that makes for the engine: one for each sequence, or one for all beams."""
        return self.num_sequences if self.beam_width == 1 else 1

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        draws = (self.top_k or 0) > 1 or ((self.top_k or 0) == 0 and (self.top_p or 0) > 0)
        return not draws or self.temperature == 0

    def parameters(self, *, with_log_probs: bool = False) -> dict[str, Any]:
        """The fields that `weft.SamplingParams` has too, as keyword arguments for it; what is not given is left out.
        `with_log_probs`: whether log-probabilities are asked for, which depend on the temperature of greedy requests,
        too."""
        given = {"seed": self.seed or 0, "on_length": self.on_length} | self._given(_ALWAYS)
        temperature = 1.0 if self.temperature is None else self.temperature
        if self.beam_width > 1:
            return given | {"temperature": temperature}
        if self.is_greedy:
            # Of one token nothing is drawn. What penalties and log-probabilities see is divided by the temperature.
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
"""They change the top-p of requests without top-k."""
