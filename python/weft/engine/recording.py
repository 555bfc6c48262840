"""What records the grammar's iterations, as the engine knows it."""

from __future__ import annotations

from typing import Protocol

from weft.engine.sequence import Request
from weft.grammar.base import Matcher


class Recorder(Protocol):
    """Told, on the engine's thread, which request gets which slot, and of requests that fail."""

    def watch(self, request: Request, slot: int, matcher: Matcher | None) -> None:
        """A request gets a slot, before the push that attaches its matcher; again when it comes back."""

    def failed(self, request: Request) -> None:
        """A request ended with an error."""

    def close(self) -> None:
        """The engine is closed, with nothing in flight."""
