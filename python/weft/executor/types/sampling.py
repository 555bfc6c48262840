"""How the tokens of a request are chosen: `SamplingConfig`."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

from pydantic import PlainValidator

from weft.core import BOUNDS, MAX_LOGIT, Kind, OnLength
from weft.errors import InputError
from weft.executor.types.fields import Count, NotNegative, Within, refused, shared
from weft.executor.types.settings import Settings

_KIND, _LOWEST, _HIGHEST, _VALID = BOUNDS["top_p"]
_SHARE = Within(_KIND, _LOWEST, _HIGHEST, f"0 (greedy), or {_VALID}")


def _top_p(value: Any) -> float:
    return 0 if Kind.NUMBER.holds(value) and value == 0 else _SHARE.parse(value)


class SamplingConfig(Settings):
    """How the tokens of a request are chosen. What is None has the meaning of `weft.SamplingParams`' default, except:

    - Without `temperature`, `top_k`, `top_p` and `min_p` the likeliest token is taken, and so it is with a temperature
      of 0, a `top_k` of 1 or a `top_p` of 0. Otherwise `temperature` is 1 where it is not given.
    - `num_return_sequences` sequences come out; without beams each is drawn with its own seed, `seed` + its index.

    A `beam_width` above 1 searches by beams, and gives at most as many sequences, best first. They are compared by the
    sum of their log-probabilities over their length to the power of `length_penalty` (0 to 100; default 0).
    `early_stopping` says when the search ends once there are `beam_width` answers: 1 (the default), at once; 0, when no
    living beam scores better, as long as it is, than the worst of them; 2 or more, when none could, however long it
    became. With `beam_search_diversity_rate` (0 to 10,000) the r-th likeliest continuation of a beam is chosen as if it
    were r times as much less likely. With one beam there is nothing for the three to change.

    `on_length`, weft's own, is "cut" or "close": whether a guided answer may be cut at its `max_tokens`, or is whole by
    then (see `weft.SamplingParams`).

    Raises `InputError` for a value of another type, outside its bounds, or of a field that weft refuses.
    """

    beam_width: Count = 1
    _: KW_ONLY
    top_k: Annotated[int, shared("top_k")] | None = None
    top_p: Annotated[float, PlainValidator(_top_p)] | None = None
    top_p_min: None = refused()
    top_p_reset_ids: None = refused()
    top_p_decay: None = refused()
    seed: Annotated[int, shared("seed")] | None = None
    temperature: Annotated[float, shared("temperature")] | None = None
    min_tokens: Annotated[int, shared("min_tokens")] | None = None
    beam_search_diversity_rate: Annotated[float, Within(Kind.NUMBER, 0, MAX_LOGIT, "0 to 10000")] | None = (
        None
    )
    repetition_penalty: Annotated[float, shared("repetition_penalty")] | None = None
    presence_penalty: Annotated[float, shared("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, shared("frequency_penalty")] | None = None
    length_penalty: Annotated[float, Within(Kind.NUMBER, 0, 100, "0 to 100")] | None = None
    early_stopping: NotNegative | None = None
    no_repeat_ngram_size: None = refused()
    num_return_sequences: Count | None = None
    min_p: Annotated[float, shared("min_p")] | None = None
    beam_width_array: None = refused()
    on_length: OnLength = "cut"

    def check(self) -> None:
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
        given = (self.temperature, self.top_k, self.top_p, self.min_p)
        return given == (None,) * 4 or self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    def parameters(self) -> dict[str, Any]:
        """The fields that `weft.SamplingParams` has too, as keyword arguments for it; what is not given is left out."""
        names = ("seed", "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty")
        chosen = names if self.is_greedy else (*names, "temperature", "top_k", "top_p", "min_p")
        given = {name: getattr(self, name) for name in chosen if getattr(self, name) is not None}
        return {"temperature": 0.0 if self.is_greedy else 1.0, "on_length": self.on_length} | given
