"""A request's guide: compiled some time, then a matcher, which stays with a request that is preempted."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

from weft import registry
from weft.grammar.base import CompiledGuide, Matcher, Opening

Splice = tuple[int, tuple[int, ...], int]
"""A time at which a program wrote the end of the text anew: after how many tokens of the answer, which tokens it took
back, and how many it put."""


class RequestGuide:
    """What guides one request. `compiling` ends in `compiled`. `splices` are the times its program wrote the text's end
    anew; it took tokens back and put none `num_barren` times in a row."""

    def __init__(self, compiling: Future[CompiledGuide]) -> None:
        self.compiling = compiling
        self.compiled: CompiledGuide | None = None
        self.matcher: Matcher | None = None
        self.splices: list[Splice] = []
        self.num_barren = 0
        self._opening = Opening()
        self._closes = False

    @classmethod
    def of(cls, compiled: CompiledGuide) -> RequestGuide:
        """A guide that is compiled."""
        done: Future[CompiledGuide] = Future()
        done.set_result(compiled)
        guide = cls(done)
        guide.compiled = compiled
        return guide

    @property
    def room(self) -> int | None:
        """The most tokens within which the answer is to be whole; None where it may be cut."""
        return self._opening.room if self._closes else None

    def open_with(self, opening: Opening, closes: bool) -> None:
        """What its matcher may know of the request; `closes`: the answer is to be whole within its length."""
        self._opening, self._closes = opening, closes

    def bound(self, room: int) -> None:
        """The answer may have `room` tokens, which may be fewer than were asked for."""
        self._opening = replace(self._opening, room=room)

    def begin(self) -> Matcher:
        """The request's matcher, begun where there is none. Raises `GuideError` where it can't have one."""
        if self.matcher is None:
            assert self.compiled is not None
            self.matcher = self._begun(self.compiled)
        return self.matcher

    def _begun(self, compiled: CompiledGuide) -> Matcher:
        if not self._closes:
            return compiled.matcher(self._opening)
        matcher: Matcher = registry.load("leaves", "closing_matcher")(compiled, self._opening)
        return matcher

    def take_matcher(self) -> Matcher:
        """The request's matcher, which is the caller's from then on."""
        matcher = self.begin()
        self.matcher = None
        return matcher

    def close(self) -> None:
        """Let go of the guide and its matcher."""
        self.compiling = Future()
        self.compiled = self.matcher = None
