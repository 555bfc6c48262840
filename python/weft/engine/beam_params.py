"""How a request is searched by beams."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.core import Kind
from weft.errors import InputError


@dataclass(frozen=True)
class BeamParams:
    """How a request searches.

    `width` (2 or more) beams live at a time, and at most `num_return_sequences` (1 to `width`; None: `width`) answers
    come out, best first. An answer's score is the sum of its log-probabilities over its length to the power of
    `length_penalty` (0 to 100; 0: sums are compared, larger ones favour long answers).

    `early_stopping` says when the search stops once there are `width` answers: 1, at once; 0, when no living beam
    scores better, as long as it is, than the worst of the answers; 2 or more, when none could, however long it
    became. `diversity_rate` (0 to 10,000) makes siblings compete less: a beam's continuations are compared with those
    of others as if the r-th likeliest were r times the rate less likely (r from 0). The scores do not change by it.

    Raises `InputError` for a value of another type or outside its bounds.
    """

    width: int
    num_return_sequences: int | None = None
    length_penalty: float = 0.0
    early_stopping: int = 1
    diversity_rate: float = 0.0

    def __post_init__(self) -> None:
        _check("beam width", self.width, Kind.INTEGER, 2, math.inf, "2 or more")
        wanted = self.num_return_sequences
        if wanted is not None:
            _check(
                "num_return_sequences", wanted, Kind.INTEGER, 1, self.width, f"1 to the width, {self.width}"
            )
        _check("length_penalty", self.length_penalty, Kind.NUMBER, 0, 100, "0 to 100")
        _check("early_stopping", self.early_stopping, Kind.INTEGER, 0, math.inf, "0, 1 or more")
        _check("diversity rate", self.diversity_rate, Kind.NUMBER, 0, 1e4, "0 to 10000")

    @property
    def num_answers(self) -> int:
        """How many answers come out at most."""
        return self.width if self.num_return_sequences is None else self.num_return_sequences

    def score(self, cum_log_prob: float, length: int) -> float:
        """What answers are compared by; `length` tokens, at least 1."""
        return float(cum_log_prob / length**self.length_penalty)


def beam_pages_needed(prompt: int, room: int, width: int, page_size: int) -> int:
    """Pages for `width` beams after `prompt` tokens, each with `room` tokens: full pages of the prompt are common."""
    common = prompt // page_size
    return common + width * (-(-(prompt + room) // page_size) - common)


def _check(name: str, value: float, kind: Kind, lowest: float, highest: float, valid: str) -> None:
    if not kind.holds(value):
        raise InputError(f"the {name} is {value!r}; it must be {kind.value}: {valid}")
    if not lowest <= value <= highest:
        raise InputError(f"the {name} is {value}; it must be {valid}")
