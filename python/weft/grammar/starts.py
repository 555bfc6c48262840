"""Guides whose matchers start slowly and hold much memory, such as WASM programs that read the prompt.

Worker threads start these matchers shortly before their sequences get slots (`engine/scheduler/starts.py`), so the
engine thread never waits. The sequences of a request fork one started matcher, so it is kept until the last sequence
has started.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol, TypeGuard

from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, Matcher, Opening
from weft.grammar.guide import Guide


class OpensAhead(CompiledGuide, Protocol):
    """A compiled guide whose matchers start slowly, and so are started ahead on worker threads."""

    opens_ahead: bool
    memory_settings: str
    """The settings that bound `sequence_bytes`, for error messages."""

    @property
    def sequence_bytes(self) -> int:
        """The maximum bytes that the matcher of one sequence may hold."""

    def open(self, opening: Opening) -> Matcher:
        """Start the matcher of a request's first sequence. Called on a worker thread, not on the engine's. Raises
        `GuideError`."""


def opens_ahead(compiled: CompiledGuide) -> TypeGuard[OpensAhead]:
    """Whether a guide's matchers must be started before their sequences get slots."""
    return bool(getattr(compiled, "opens_ahead", False))


class StartedGuide:
    """A compiled guide for one request, whose sequences start one after another from one matcher."""

    memory_bytes = 0

    def __init__(self, compiled: OpensAhead, opening: Opening) -> None:
        self._compiled = compiled
        self._opening = opening
        self._first: Matcher | None = None

    @property
    def guide(self) -> Guide:
        return self._compiled.guide

    @property
    def backend(self) -> str | None:
        return self._compiled.backend

    @property
    def notes(self) -> tuple[str, ...]:
        return self._compiled.notes

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""
        return self._compiled.vocab_size

    @property
    def sequence_bytes(self) -> int:
        """The maximum bytes that the matcher of one sequence may hold."""
        return self._compiled.sequence_bytes

    @property
    def memory_settings(self) -> str:
        return self._compiled.memory_settings

    def begin(self, *, is_last: bool) -> Matcher:
        """Return the matcher of the next sequence: a fork of the first matcher, or for the last sequence that matcher
        itself. The first call starts it. Not thread-safe. Raises `GuideError`."""
        first = self._first if self._first is not None else self._compiled.open(self._opening)
        self._first = None if is_last else first
        return first if is_last else first.fork()

    def release(self) -> None:
        """Release the first matcher, because no sequence is left to start."""
        self._first = None

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher that shares nothing with the request's other matchers."""
        return self._compiled.matcher(opening)


def compile_error(compiling: Future[CompiledGuide]) -> BaseException | None:
    """The error of a compilation that is done: a `GuideError` if the future was cancelled. None if there is none."""
    if compiling.cancelled():
        return GuideError("the guide's future was cancelled")
    return compiling.exception()


def for_request(compiled: Future[CompiledGuide], opening: Opening) -> Future[CompiledGuide]:
    """Wrap a compiled guide for one request: in a `StartedGuide` if its matchers start slowly, else not at all."""
    if compiled.done() and (compile_error(compiled) is not None or not opens_ahead(compiled.result())):
        return compiled
    wrapped: Future[CompiledGuide] = Future()
    wrapped.set_running_or_notify_cancel()

    def pass_on(done: Future[CompiledGuide]) -> None:
        error = compile_error(done)
        if error is not None:
            wrapped.set_exception(error)
            return
        guide = done.result()
        wrapped.set_result(StartedGuide(guide, opening) if opens_ahead(guide) else guide)

    compiled.add_done_callback(pass_on)
    return wrapped
