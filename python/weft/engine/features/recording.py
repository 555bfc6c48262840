"""What records the grammar's iterations, as the engine knows it."""

from __future__ import annotations

from typing import Protocol

from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher


class Recorder(Protocol):
    """Told, on the engine's thread, which request gets which slot, and of requests that fail."""

    def watch(self, sequence: Sequence, slot: int, matcher: Matcher | None) -> None:
        """A request gets a slot, before the push that attaches its matcher; again when it comes back."""

    def failed(self, sequence: Sequence) -> None:
        """A request ended with an error."""

    def close(self) -> None:
        """The engine is closed, with nothing in flight."""
