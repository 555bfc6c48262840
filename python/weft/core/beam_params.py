"""Parameters of beam search."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from weft.core import ValueKind, check_entries
from weft.errors import InputError

MAX_WIDTHS = 8
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class BeamParams:
    """The parameters of one request's beam search.

    - The search keeps `width` beams (2 or more). It returns at most `num_return_sequences` answers (1 to `width`; None:
      `width`), best first.
    - The score of an answer is the sum of its log-probabilities divided by its length to the power of `length_penalty`
      (0 or more). The length includes the end token. With 0 the sums are compared; larger values favour long answers.
    - `early_stopping` (any whole number) ends the search once there are `width` answers. 1: at once. 0: when no active
      beam, at its present length, scores better than the worst answer. Any other number: when no active beam could do
      so at any length.
    - `diversity_rate` (0 or more): i times the rate is added to the log-probabilities of the continuations of beam i
      (0: the best) when continuations are chosen, so that not all beams descend from one. Scores do not include it.
    - `widths` (up to 8 numbers, each 1 or more) varies the number of beams: `widths[i]` beams remain after the answer's
      token i (from 0), and the last entry holds for all later tokens. `width`, the number of answers that are kept, is
      then the largest of `width` and `widths`.

    Raises `InputError` for a value of another type or out of bounds.
    """

    width: int
    num_return_sequences: int | None = None
    length_penalty: float = 0.0
    early_stopping: int = 1
    diversity_rate: float = 0.0
    widths: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_entries("widths", self.widths, ValueKind.INTEGER)
        widths = tuple(self.widths)
        if len(widths) > MAX_WIDTHS:
            raise InputError(f"there are {len(widths)} widths; give {MAX_WIDTHS} at most: the last one stays")
        for width in widths:
            _check("beam width of a step", width, ValueKind.INTEGER, 1, math.inf, "1 or more")
        _check("beam width", self.width, ValueKind.INTEGER, 1 if widths else 2, math.inf, "2 or more")
        object.__setattr__(self, "widths", widths)
        object.__setattr__(self, "width", max(self.width, *widths) if widths else self.width)
        _check("beam width", self.width, ValueKind.INTEGER, 2, math.inf, "2 or more")
        wanted = self.num_return_sequences
        if wanted is not None:
            _check(
                "num_return_sequences",
                wanted,
                ValueKind.INTEGER,
                1,
                self.width,
                f"1 to the width, {self.width}",
            )
        _check("length_penalty", self.length_penalty, ValueKind.NUMBER, 0, _LARGEST, "0 or more")
        _check("early_stopping", self.early_stopping, ValueKind.INTEGER, -math.inf, math.inf, "any")
        _check("diversity rate", self.diversity_rate, ValueKind.NUMBER, 0, _LARGEST, "0 or more")

    @property
    def num_answers(self) -> int:
        """The largest number of answers that the search returns."""
        return self.width if self.num_return_sequences is None else self.num_return_sequences

    @property
    def step_widths(self) -> tuple[int, ...]:
        """The number of beams after each of the first tokens; the last entry holds for all later tokens."""
        return tuple(self.widths) or (self.width,)

    def width_after(self, index: int) -> int:
        """The number of beams after the answer's token `index` (from 0)."""
        widths = self.step_widths
        return widths[min(index, len(widths) - 1)]

    def score(self, cum_log_prob: float, length: int) -> float:
        """The score of an answer of `length` tokens, at least 1."""
        try:
            return cum_log_prob / math.pow(length, self.length_penalty)
        except OverflowError:  # the power is too large for a float: the limit of the quotient
            return -0.0


def beam_pages_needed(prompt: int, room: int, widths: Sequence[int], page_size: int) -> int:
    """The most pages that a beam search holds at a time, for a prompt of `prompt` tokens and answers of at most `room`
    tokens. `widths` are the step widths (`BeamParams.step_widths`). Beams share the full pages of the prompt."""
    common = prompt // page_size
    most = -(-prompt // page_size)  # the prompt alone
    for index, width in enumerate(widths):
        length = prompt + (room if index == len(widths) - 1 else min(index + 1, room))
        most = max(most, common + width * (-(-length // page_size) - common))
    return most


def _check(name: str, value: float, kind: ValueKind, lowest: float, highest: float, valid: str) -> None:
    if not kind.holds(value):
        raise InputError(f"the {name} is {value!r}; it must be {kind.value}: {valid}")
    if not lowest <= value <= highest:
        raise InputError(f"the {name} is {value}; it must be {valid}")
