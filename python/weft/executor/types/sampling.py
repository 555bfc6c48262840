"""How the tokens of a request are chosen: `SamplingConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

from weft.core import BOUNDS, MAX_LOGIT, Kind, OnLength, check_on_length
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import count, number, number_parser, parsed, refused, shared


def _parse_on_length(name: str, value: Any) -> OnLength:
    check_on_length(value)
    return cast(OnLength, value)


_KIND, _LOWEST, _HIGHEST, _VALID = BOUNDS["top_p"]
_parse_zero = number_parser(_KIND, 0, 0, "0")
_parse_share = number_parser(_KIND, _LOWEST, _HIGHEST, f"0 (greedy), or {_VALID}")


def _parse_top_p(name: str, value: Any) -> float:
    parse = _parse_zero if Kind.NUMBER.holds(value) and value == 0 else _parse_share
    return cast(float, parse(name, value))


@dataclass(eq=False)
class SamplingConfig(Checked):
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

    beam_width: int = count(1)
    _: KW_ONLY
    top_k: int | None = shared("top_k")
    top_p: float | None = parsed(_parse_top_p, default=None, optional=True)
    top_p_min: float | None = refused("give a fixed top_p, or min_p, which follows the likeliest token")
    top_p_reset_ids: int | None = refused("top_p does not decay, so nothing is reset; leave it out")
    top_p_decay: float | None = refused("give a fixed top_p, or min_p, which follows the likeliest token")
    seed: int | None = shared("seed")
    temperature: float | None = shared("temperature")
    min_tokens: int | None = shared("min_tokens")
    beam_search_diversity_rate: float | None = number(Kind.NUMBER, 0, MAX_LOGIT, "0 to 10000", default=None)
    repetition_penalty: float | None = shared("repetition_penalty")
    presence_penalty: float | None = shared("presence_penalty")
    frequency_penalty: float | None = shared("frequency_penalty")
    length_penalty: float | None = number(Kind.NUMBER, 0, 100, "0 to 100", default=None)
    early_stopping: int | None = count(None, lowest=0)
    no_repeat_ngram_size: int | None = refused(
        "use frequency_penalty or bad_words, or a logits post-processor that forbids the tokens"
    )
    num_return_sequences: int | None = count(None)
    min_p: float | None = shared("min_p")
    beam_width_array: Sequence[int] | None = refused(
        "the beam width stays the same throughout an answer; give beam_width"
    )
    on_length: OnLength = parsed(_parse_on_length, default="cut")

    def check(self) -> None:
        super().check()
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
