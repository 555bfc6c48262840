"""The time limit of guides whose matchers are called from Python, by the clock of the guided state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft import _core
from weft.errors import GuideStateError


class GuideClock(_core.GuideClock):
    """Measures processor time, and waiting, against a limit of `limit_s` seconds for one token (0: no limit)."""

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """A scope that calls matchers for `part`, "masks" or "tokens". Raises `GuideStateError` at its end if all
        scopes for this token are together over the limit."""
        self.begin()
        yield
        self.lap(part)
        if problem := self.problem():
            raise GuideStateError(problem)
