"""Reads a call's arguments that are XML, and writes them as JSON, each when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.parsing.json_text import BLANKS, JsonText
from weft.parsing.schema import Schema
from weft.parsing.until import standing, until
from weft.parsing.xml_styles import Hint, XmlStyle
from weft.parsing.xml_values import leaf, named

Write = Callable[[str], None]
Step = Callable[[str, int], tuple[int, bool]]
"""Reads from a place on: up to where it read, and whether it can go on without more text."""


@dataclass
class _Value:
    """A value that has begun: its name, what it says of itself, what it must satisfy, and what it holds so far. That is
    text, or members: the name of each, and where it is to be written.

    `json` follows one that is JSON with strings inside, which may hold what ends the value.
    """

    name: str
    hint: Hint
    schema: Schema
    place: int = 0
    closes: tuple[str, ...] = ()
    json: JsonText | None = None
    texts: list[str] = field(default_factory=list)
    members: list[tuple[str, int]] = field(default_factory=list)


class XmlArguments:
    """Writes the members of the arguments' object; `is_done` where something else follows than an argument."""

    def __init__(self, style: XmlStyle, schema: Schema) -> None:
        self.is_done = False
        self._style = style
        self._open = [_Value("", "dict", schema)]
        self._head: list[str] = []
        self._pieces: list[str] = []
        self._step: Step = self._between
        self._write: Write = _ignore

    def read(self, text: str, at: int, is_end: bool, write: Write) -> int:
        """Read from `at` on; up to where it read."""
        self._write = write
        goes_on = True
        while goes_on and not self.is_done:
            at, goes_on = self._step(text, at)
        return at

    def _between(self, text: str, at: int) -> tuple[int, bool]:
        """Between arguments."""
        at = BLANKS.match(text, at).end()  # type: ignore[union-attr]
        found = standing(text, at, self._style.openings)
        if found is None:
            return at, False
        if found == self._style.open:
            return self._begin(at)
        self._write("}" if self._open[0].members else "{}")
        self.is_done = True
        return at, False

    def _begin(self, at: int) -> tuple[int, bool]:
        """A value begins, with what names it."""
        self._head, self._step = [], self._naming
        return at + len(self._style.open), True

    def _naming(self, text: str, at: int) -> tuple[int, bool]:
        """In what names a value."""
        opened = self._style.opened
        end, found = until(text, at, (opened,))
        self._head.append(text[at:end])
        if found is None:
            return end, False
        head = "".join(self._head)
        parent = self._open[-1]
        if head not in parent.schema.names and any(
            name.startswith(head + opened) for name in parent.schema.names
        ):
            self._head.append(opened)
        else:
            self._open.append(self._value(parent, head))
            self._step = self._inside
        return end + len(opened), True

    def _value(self, parent: _Value, head: str) -> _Value:
        name, hint = self._style.read_head(head)
        is_item = parent.hint == "list" or (name == "item" and parent.hint is None and parent.schema.is_list)
        schema = parent.schema.item(len(parent.members)) if is_item else parent.schema.property(name)
        value = _Value(name, hint, schema, len(self._pieces))
        self._pieces += ["", ""]  # its name, and what it begins with, are known when all of it is
        close = self._style.close.replace("{key}", name)
        if self._style.nests_with(hint):
            value.closes = (close, *self._style.openings)
        else:
            value.closes = (close,)
            is_json = hint == "json" or (hint is None and "string" not in schema.types)
            value.json = JsonText(is_strict=True) if is_json else None
        return value

    def _inside(self, text: str, at: int) -> tuple[int, bool]:
        """In a value."""
        value = self._open[-1]
        if value.json is not None and not value.json.is_done:
            end = value.json.scan(text, at)
            value.texts.append(text[at:end])
            return end, value.json.is_done
        end, found = until(text, at, value.closes)
        value.texts.append(text[at:end])
        if found == value.closes[0]:
            self._end(value)
            return end + len(found), True
        if found == self._style.open:
            return self._begin(end)
        if found:  # it ends something else
            value.texts.append(found)
            return end + len(found), True
        return end, False

    def _end(self, value: _Value) -> None:
        """A value has ended."""
        self._open.pop()
        self._finish(value)
        parent = self._open[-1]
        if len(self._open) > 1:
            parent.members.append((value.name, value.place))
            return
        self._write((", " if parent.members else "{") + named(value.name) + "".join(self._pieces))
        parent.members.append((value.name, 0))
        self._pieces.clear()
        self._step = self._between

    def _finish(self, value: _Value) -> None:
        """Write a value's pieces."""
        begin = value.place + 1
        if not value.members and value.hint not in ("dict", "list"):
            self._pieces[begin] = leaf("".join(value.texts), value.hint, value.schema, self._style)
            return
        is_list = value.hint == "list"
        if value.hint is None:
            is_list = value.schema.is_list and all(name == "item" for name, _ in value.members)
        for i, (name, place) in enumerate(value.members):
            self._pieces[place] = (", " if i else "") + ("" if is_list else named(name))
        self._pieces[begin] = "[" if is_list else "{"
        self._pieces.append("]" if is_list else "}")


def _ignore(text: str) -> None:
    """Nothing is written before text is read."""
