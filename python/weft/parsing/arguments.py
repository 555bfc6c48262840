"""Reads a call's arguments that are JSON."""

from __future__ import annotations

from collections.abc import Callable

from weft.parsing.json_text import BLANKS, JsonText

Write = Callable[[str], None]


class JsonArguments:
    """Writes the JSON text as it comes; `is_done` where the value ends."""

    def __init__(self) -> None:
        self.is_done = False
        self._json = JsonText()
        self._has_begun = False

    def read(self, text: str, at: int, is_end: bool, write: Write) -> int:
        """Read from `at` on; up to where it read."""
        if not self._has_begun:
            at = BLANKS.match(text, at).end()  # type: ignore[union-attr]
            self._has_begun = at < len(text)
        end = self._json.scan(text, at)
        if end > at:
            write(text[at:end])
        if is_end:
            self._json.end()
        self.is_done = self._json.is_done
        return end
