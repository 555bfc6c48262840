"""A guide of each kind that no grammar library compiles, for the small vocabulary of `grammars`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from grammars import CountdownMatcher
from weft.grammar import Guide


class Forward:
    """A matcher that can't go back, nor be copied: weft takes its tokens again."""

    def __init__(self, resets: bool = False) -> None:
        self._inner = CountdownMatcher(5, (60, 61, 100))
        if resets:
            self.reset = self._inner.reset

    def accept(self, token: int) -> bool:
        return self._inner.accept(token)

    def fill(self, row: NDArray[np.int32]) -> None:
        self._inner.fill(row)

    def is_terminated(self) -> bool:
        return self._inner.is_terminated()


KINDS: dict[str, Callable[[], Guide]] = {
    "after a token": lambda: Guide.after(1, Guide.regex("[a-c]{1,9}")),
    "after a text": lambda: Guide.after("ab", Guide.json(), max_free_tokens=6),
    "after a letter": lambda: Guide.after('"', Guide.regex('[:} "]{2,5}'), max_free_tokens=2),
    "after twice": lambda: Guide.after("a", Guide.after(1, Guide.regex("[0-9]{3}"), max_free_tokens=1)),
    "after a token, Python": lambda: Guide.after(1, Guide.matcher(Forward), max_free_tokens=3),
    "Python": lambda: Guide.matcher(lambda: CountdownMatcher(4)),
    "Python, forward": lambda: Guide.matcher(Forward),
    "Python, forward and reset": lambda: Guide.matcher(lambda: Forward(resets=True)),
}
