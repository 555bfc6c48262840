"""What a guide takes within one token, where its matchers are called from Python: the guided state's own clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft import _core
from weft.errors import GuideStateError


class GuideClock:
    """Measures processor time, and waiting, up to `limit_s` seconds for one token (0: no limit, and nothing is
    measured)."""

    def __init__(self, limit_s: float) -> None:
        self._native = _core.GuideClock(limit_s)

    def restart(self, tokens: int = 1) -> None:
        """New tokens begin; those before took the work of so many."""
        self._native.restart(tokens)

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """Around what calls matchers for `part`, "masks" or "tokens". Raises `GuideStateError` where all that was
        measured for this token is over the limit."""
        self._native.begin()
        yield
        self._native.lap(part)
        if problem := self._native.problem():
            raise GuideStateError(problem)
