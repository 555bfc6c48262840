"""Where what callbacks raise is raised again."""

from __future__ import annotations

import itertools

from weft import _core

_numbers = itertools.count(1)


class FailureScope:
    """Keeps failures apart. What work launched inside raises is raised only inside, by `check`, a wait, a launch or a
    replay, and nothing else is raised there.

    An engine issues its work in its own scope: its failures end its requests, and a callback of the user that raises
    does not. Enter it on one thread at a time; it may be entered again.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._outer: list[int] = []

    def __enter__(self) -> FailureScope:
        self._outer.append(_core.exchange_failure_scope(self._number))
        return self

    def __exit__(self, *_: object) -> None:
        _core.exchange_failure_scope(self._outer.pop())
