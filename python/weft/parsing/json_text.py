"""Finds the end of a JSON value in streaming text."""

from __future__ import annotations

import re
from collections.abc import Callable

BLANKS = re.compile(r"[ \n\r\t]*")
STARTS = frozenset('{["-0123456789tfn')
"""First characters of JSON values."""
_STRING = re.compile(r'["\\\x00-\x1f]')
_INSIDE = re.compile(r'["{}\[\]]|[^\s,:0-9eE+\-.a-z]')
_SCALAR = re.compile(r"[^-+.0-9A-Za-z]")
_CLOSING = {"{": "}", "[": "]"}


class JsonText:
    """Scans one JSON value in pieces, from its first character. `is_done` is true after its last character.

    With `is_strict` the scan also ends at the first bracket, quote or letter that can't be JSON.
    """

    def __init__(self, *, is_strict: bool = False) -> None:
        self.is_done = False
        self._is_strict = is_strict
        self._closing: list[str] = []
        self._is_escaped = False
        self._step: Callable[[str, int], int] = self._begin

    def scan(self, text: str, start: int) -> int:
        """Scan `text` from `start`. Returns the end of the part that belongs to the value. Unless `is_done`, the value
        goes on in the next text."""
        while start < len(text) and not self.is_done:
            start = self._step(text, start)
        return start

    def end(self) -> None:
        """Report that no text follows, which ends a number, `true`, `false` or `null`."""
        self.is_done = self.is_done or self._step == self._scalar

    def _begin(self, text: str, at: int) -> int:
        at = BLANKS.match(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] in ('"', "{", "["):
            return self._inside(text, at)
        if at == len(text):
            return at
        self._step = self._scalar
        return at

    def _inside(self, text: str, at: int) -> int:
        found = _INSIDE.search(text, at)
        if found is None:
            return len(text)
        mark = found[0]
        if mark == '"':
            self._step = self._string
        elif mark in _CLOSING:
            self._closing.append(_CLOSING[mark])
            self._step = self._inside
        elif mark in "}]" and self._closing:
            is_other = self._closing.pop() != mark
            self.is_done = not self._closing or (is_other and self._is_strict)
        elif self._is_strict:
            self.is_done = True
            return found.start()
        return found.end()

    def _string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        found = _STRING.search(text, at)
        if found is None:
            return len(text)
        if found[0] == '"':
            self.is_done = not self._closing
            self._step = self._inside
        elif found[0] == "\\":
            self._is_escaped = True
        elif self._is_strict:
            self.is_done = True
            return found.start()
        return found.end()

    def _scalar(self, text: str, at: int) -> int:
        found = _SCALAR.search(text, at)
        self.is_done = found is not None
        return len(text) if found is None else found.start()
