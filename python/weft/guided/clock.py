"""The per-token time limit for matchers that Python calls (beam search), with the same clock as the guided state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft import _core
from weft.errors import GuideStateError


class GuideClock(_core.GuideClock):
    """Measures the processor time and the waiting time of matchers against a limit of `limit_s` seconds for each token
    (0: no limit)."""

    @contextmanager
    def measured(self, part: str) -> Iterator[None]:
        """A scope in which the caller calls matchers. `part` says what for: "masks" or "tokens". Raises
        `GuideStateError` at its end if this token's scopes together exceed the limit."""
        self.begin()
        yield
        self.lap(part)
        if problem := self.problem():
            raise GuideStateError(problem)
