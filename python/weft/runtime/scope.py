"""Scopes that decide where the exceptions of callbacks are raised."""

from __future__ import annotations

import itertools

from weft import _core

_numbers = itertools.count(1)


class FailureScope:
    """Separates the failures of work launched in the scope from all others.

    `check`, a wait, a launch or a replay inside the scope raises the exceptions of work launched there, and no others.
    An engine launches its work in a scope of its own. Failures of that work end the engine's requests; a failing
    callback of the user's code does not. Enter a scope on one thread at a time. Scopes can be nested and entered again.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._outer: list[int] = []

    def __enter__(self) -> FailureScope:
        self._outer.append(_core.exchange_failure_scope(self._number))
        return self

    def __exit__(self, *_: object) -> None:
        _core.exchange_failure_scope(self._outer.pop())
