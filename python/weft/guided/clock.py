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
        """Measure the calls of matchers in this scope. `part` is their purpose: "masks" or "tokens". At its end it
        raises `GuideStateError` if all scopes for this token together exceed the limit."""
        self.begin()
        yield
        self.lap(part)
        if problem := self.problem():
            raise GuideStateError(problem)
