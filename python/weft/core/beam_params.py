"""How a request is searched by beams."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core import Kind, check_entries
from weft.errors import InputError

MAX_WIDTHS = 8
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class BeamParams:
    """How a request searches.

    `width` (2 or more) beams live at a time, and at most `num_return_sequences` (1 to `width`; None: `width`) answers
    come out, best first. An answer's score is the sum of its log-probabilities over its length, its end token
    included, to the power of `length_penalty` (0 or more; 0: sums are compared, larger ones favour long answers).

    `early_stopping` (any whole number) says when the search stops once there are `width` answers: 1, at once; 0, when
    no living beam scores better, as long as it is, than the worst of the answers; any other, when none could, however
    long it became. With `diversity_rate` (0 or more) the continuations of beam i (0: the best) are chosen as if they
    were i times the rate more likely, so that not all beams descend from one. The scores do not change by it.

    `widths` (1 to 8 of them, each 1 or more) change how many beams live on: after the answer's token i (from 0)
    `widths[i]`, and the last of them after all later tokens. `width` is then the largest of them and itself: so many
    answers are kept.

    Raises `InputError` for a value of another type or outside its bounds.
    """

    width: int
    num_return_sequences: int | None = None
    length_penalty: float = 0.0
    early_stopping: int = 1
    diversity_rate: float = 0.0
    widths: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_entries("widths", self.widths, Kind.INTEGER)
        widths = tuple(self.widths)
        if len(widths) > MAX_WIDTHS:
            raise InputError(f"there are {len(widths)} widths; give {MAX_WIDTHS} at most: the last one stays")
        for width in widths:
            _check("beam width of a step", width, Kind.INTEGER, 1, math.inf, "1 or more")
        _check("beam width", self.width, Kind.INTEGER, 1 if widths else 2, math.inf, "2 or more")
        object.__setattr__(self, "widths", widths)
        object.__setattr__(self, "width", max(self.width, *widths) if widths else self.width)
        _check("beam width", self.width, Kind.INTEGER, 2, math.inf, "2 or more")
        wanted = self.num_return_sequences
        if wanted is not None:
            _check(
                "num_return_sequences", wanted, Kind.INTEGER, 1, self.width, f"1 to the width, {self.width}"
            )
        _check("length_penalty", self.length_penalty, Kind.NUMBER, 0, _LARGEST, "0 or more")
        _check("early_stopping", self.early_stopping, Kind.INTEGER, -math.inf, math.inf, "any")
        _check("diversity rate", self.diversity_rate, Kind.NUMBER, 0, _LARGEST, "0 or more")

    @property
    def num_answers(self) -> int:
        """How many answers come out at most."""
        return self.width if self.num_return_sequences is None else self.num_return_sequences

    @property
    def step_widths(self) -> tuple[int, ...]:
        """How many beams live on after each of the first tokens; the last entry holds for all later ones."""
        return tuple(self.widths) or (self.width,)

    def width_after(self, index: int) -> int:
        """How many beams live on after the answer's token `index`."""
        widths = self.step_widths
        return widths[min(index, len(widths) - 1)]

    def score(self, cum_log_prob: float, length: int) -> float:
        """What answers are compared by; `length` tokens, at least 1."""
        try:
            return cum_log_prob / math.pow(length, self.length_penalty)
        except OverflowError:  # over more than a number can be
            return -0.0


def beam_pages_needed(prompt: int, room: int, widths: Sequence[int], page_size: int) -> int:
    """Pages for the beams after `prompt` tokens, with at most `room` tokens each: `widths[i]` of them have i + 1
    tokens, and the last entry holds to the end. Full pages of the prompt are common."""
    common = prompt // page_size
    most = -(-prompt // page_size)  # the prompt's own
    for index, width in enumerate(widths):
        length = prompt + (room if index == len(widths) - 1 else min(index + 1, room))
        most = max(most, common + width * (-(-length // page_size) - common))
    return most


def _check(name: str, value: float, kind: Kind, lowest: float, highest: float, valid: str) -> None:
    if not kind.holds(value):
        raise InputError(f"the {name} is {value!r}; it must be {kind.value}: {valid}")
    if not lowest <= value <= highest:
        raise InputError(f"the {name} is {value}; it must be {valid}")
