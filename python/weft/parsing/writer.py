"""Writes parts down: what comes in a row is one part, and blanks around markers are no text for the user."""

from __future__ import annotations

from weft.parsing.parts import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning


class PartWriter:
    """Collects parts until they are taken.

    Blanks between markers, or between one and the answer's beginning, are layout. So content that is blank so far since
    the last marker waits for what follows: a marker drops it, text is preceded by it. So does the end, after a call.
    """

    def __init__(self) -> None:
        self.num_calls = 0
        self._parts: list[Part] = []
        self._kind: type[Reasoning] | type[Content] | type[CallArguments] | None = None
        self._texts: list[str] = []
        self._blanks: list[str] | None = []

    def reasoning(self, text: str) -> None:
        """Add text that the model thinks in."""
        self._write(Reasoning, text)

    def content(self, text: str) -> None:
        """Add text for the user."""
        if self._blanks is not None:
            self._blanks.append(text)
            if not text or text.isspace():
                return
            text, self._blanks = "".join(self._blanks), None
        self._write(Content, text)

    def marker(self) -> None:
        """A marker was read."""
        self._blanks = []

    def begin_call(self, name: str) -> None:
        """Begin the next call."""
        self._add(CallBegin(self.num_calls, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """Add to the last call's arguments."""
        self._write(CallArguments, text)

    def end_call(self) -> None:
        """The last call's arguments are whole."""
        self._add(CallEnd(self.num_calls - 1))

    def end(self) -> None:
        """The answer has ended."""
        blanks, self._blanks = self._blanks, None
        if blanks and not self.num_calls:
            self._write(Content, "".join(blanks))

    def take(self) -> list[Part]:
        """What came since the last time."""
        self._settle()
        parts, self._parts = self._parts, []
        return parts

    def _write(self, kind: type[Reasoning] | type[Content] | type[CallArguments], text: str) -> None:
        if kind is not self._kind:
            self._settle()
            self._kind = kind
        self._texts.append(text)

    def _add(self, part: Part) -> None:
        self._settle()
        self._parts.append(part)

    def _settle(self) -> None:
        text, kind = "".join(self._texts), self._kind
        self._kind, self._texts = None, []
        if not text or kind is None:
            return
        if kind is CallArguments:
            self._parts.append(CallArguments(self.num_calls - 1, text))
        else:
            self._parts.append(Reasoning(text) if kind is Reasoning else Content(text))
