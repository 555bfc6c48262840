"""Converts call arguments from XML to JSON, one argument at a time.

`STYLES` are the XML styles of model families, under XGrammar's names. XML values have no types, so the argument schema
decides whether a value is a string, a number and so on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.parsing.json_text import BLANKS, JsonText
from weft.parsing.schema import Schema

Write = Callable[[str], None]
Step = Callable[[str, int], tuple[int, bool]]
"""A parser step: reads from a position, and returns the new position and whether it can go on without more text."""


@dataclass
class _Value:
    """A value whose closing tag has not come yet: its name, type hint and schema, and its content so far.

    The content is text or members. A member has a name and an index in the output pieces (`place`). `json` finds the
    end of a JSON value, because a string inside may contain the closing tag.
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
    """Reads arguments in an XML style and writes them as a JSON object. `is_done` is true when something other than an
    argument follows."""

    def __init__(self, style: XmlStyle, schema: Schema) -> None:
        self.is_done = False
        self._style = style
        self._open = [_Value("", "dict", schema)]
        self._head: list[str] = []
        self._pieces: list[str] = []
        self._step: Step = self._between
        self._write: Write = _ignore

    def read(self, text: str, at: int, is_end: bool, write: Write) -> int:
        """Read from position `at`. Returns the new position."""
        self._write = write
        goes_on = True
        while goes_on and not self.is_done:
            at, goes_on = self._step(text, at)
        return at

    def _between(self, text: str, at: int) -> tuple[int, bool]:
        """The step between arguments."""
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
        """Begin a value, after its opening tag. Its head with the name follows."""
        self._head, self._step = [], self._naming
        return at + len(self._style.open), True

    def _naming(self, text: str, at: int) -> tuple[int, bool]:
        """The step inside a value's head, which contains the value's name."""
        opened = self._style.opened
        end, found = until(text, at, (opened,))
        self._head.append(text[at:end])
        if found is None:
            return end, False
        head = "".join(self._head)
        parent = self._open[-1]
        # A property's name may contain the text that ends a head. If only such a name fits, the head goes on.
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
        # Placeholders for the name and the opening bracket (or leaf), which are known only at the value's end.
        self._pieces += ["", ""]
        close = self._style.close.replace("{key}", name)
        if self._style.nests_with(hint):
            value.closes = (close, *self._style.openings)
        else:
            value.closes = (close,)
            is_json = hint == "json" or (hint is None and "string" not in schema.types)
            value.json = JsonText(is_strict=True) if is_json else None
        return value

    def _inside(self, text: str, at: int) -> tuple[int, bool]:
        """The step inside a value."""
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
        if found:  # the closing tag of another value is plain text here
            value.texts.append(found)
            return end + len(found), True
        return end, False

    def _end(self, value: _Value) -> None:
        """Close a value. Write it if it is an argument, and not a member of another value."""
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
        """Write a closed value to the output pieces: the text of a leaf, or brackets and the names of members."""
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
    """Discard text. It is never called, because `read` sets the real writer first."""


def standing(text: str, at: int, literals: tuple[str, ...]) -> str | None:
    """The first of `literals` that stands at position `at`. "" if there is none, None if more text is needed to
    decide. The caller lists longer literals first."""
    for literal in literals:
        if text.startswith(literal, at):
            return literal
        if len(text) - at < len(literal) and literal.startswith(text[at:]):
            return None
    return ""


def until(text: str, start: int, literals: tuple[str, ...]) -> tuple[int, str | None]:
    """The first position at or after `start` with one of `literals`, and that literal. All literals must begin with the
    same character.

    If there is none, the literal is None, and the position is the first at which more text may complete one.
    """
    at = start
    if len(literals) == 1:
        found = text.find(literals[0], start)
        if found >= 0:
            return found, literals[0]
        at = max(start, len(text) - len(literals[0]) + 1)
    while (at := text.find(literals[0][0], at)) >= 0:
        stands = standing(text, at, literals)
        if stands != "":
            return at, stands
        at += 1
    return len(text), None


ENTITIES = (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
Hint = str | None
"""The type hint in a value's head: "string", "json", "dict" or "list"."""


@dataclass(frozen=True)
class XmlStyle:
    """The syntax of one style. An argument is `open`, a head that matches `named`, `opened`, the value, and `close`.

    `hints` maps words in the head to type hints. With `nests`, a value may contain other values, if its hint is "dict"
    or "list" or if the style has no hints. With `has_lines`, a value may be on lines of its own. With `escapes`, names
    use XML entities. `other` is a tag that begins like `open`, but opens no value.
    """

    open: str
    opened: str
    close: str
    named: re.Pattern[str] = re.compile("(?P<key>.*)", re.DOTALL)
    hints: dict[str, str] = field(default_factory=dict)
    nests: bool = False
    has_lines: bool = False
    escapes: bool = False
    other: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        """The tags that begin like `open`, the longest first."""
        return (self.other, self.open) if self.other else (self.open,)

    @property
    def has_empty(self) -> bool:
        """Whether an empty value may be a list or an object, because the style nests without type hints."""
        return self.nests and not self.hints

    def nests_with(self, hint: Hint) -> bool:
        """Whether a value with this hint may contain others."""
        return self.nests and (not self.hints or hint in ("dict", "list"))

    def read_head(self, head: str) -> tuple[str, Hint]:
        """The name (empty if missing) and the hint in a value's head. All of a malformed head is the name."""
        found = self.named.fullmatch(head)
        words = found.groupdict() if found else {"key": head.strip()}
        name = words["key"] or ""
        for entity, char in ENTITIES if self.escapes else ():
            name = name.replace(entity, char)
        return name, self.hints.get(words.get("hint") or "")


def _deepseek(marker: str) -> XmlStyle:
    named = re.compile(r'(?P<key>.*)" string="(?P<hint>true|false)', re.DOTALL)
    hints = {"true": "string", "false": "json"}
    return XmlStyle(f'<{marker}parameter name="', '">', f"</{marker}parameter>", named, hints)


STYLES = {
    "qwen_xml": XmlStyle("<parameter=", ">", "</parameter>", has_lines=True),
    "minimax_xml": XmlStyle('<parameter name="', '">', "</parameter>"),
    "minimax_m3_xml": XmlStyle(
        "]<]minimax[>[<", ">", "]<]minimax[>[</{key}>", nests=True, other="]<]minimax[>[</"
    ),
    "deepseek_xml": _deepseek("\uff5cDSML\uff5c"),
    "deepseek_v4_1_xml": _deepseek("\uff5cDSML\uff5c "),
    "glm_xml": XmlStyle(
        "<arg_key>",
        "<arg_value>",
        "</arg_value>",
        re.compile(r"(?P<key>.*)</arg_key>\s*", re.DOTALL),
    ),
    "cohere_xml": XmlStyle(
        "<cofl:value",
        '">',
        "</cofl:value>",
        re.compile(r'(?: name="(?P<key>[^"]*)")? type="(?P<hint>\w+)'),
        {"raw": "string", "json": "json", "dict": "dict", "list": "list"},
        nests=True,
        escapes=True,
    ),
    "kimi_k3_xml": XmlStyle(
        '<|open|>argument key="',
        '"<|sep|>',
        "<|close|>argument<|sep|>",
        re.compile(r'(?P<key>.*)" type="(?P<hint>\w+)', re.DOTALL),
        {"string": "string"},
        escapes=True,
    ),
}


Candidate = tuple[str, Any]
"""A possible interpretation of a value: its JSON text, and the value."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python literals, which some models write, and their JSON."""
_EMPTY: tuple[Candidate, ...] = (("[]", []), ("{}", {}))


def named(name: str) -> str:
    """The key of an object's member as JSON text, with the colon."""
    return f"{json.dumps(name, ensure_ascii=False)}: "


def leaf(text: str, hint: Hint, schema: Schema, style: XmlStyle) -> str:
    """The JSON text of a value without members: its first interpretation that the schema accepts. If the schema accepts
    none, take the first that it can't decide, or else the first."""
    texts, values = list(_texts(text, style.has_lines)), list(_values(text))
    if style.has_empty and not text.strip():
        values += _EMPTY
    is_text = hint == "string" or (hint is None and schema.types == {"string"})
    candidates = [*texts, *values] if is_text else [*values, *texts]
    verdicts = []
    for candidate, value in candidates:
        verdicts.append(schema.holds(value))
        if verdicts[-1]:
            return candidate
    unsure = verdicts.index(None) if None in verdicts else 0
    return candidates[unsure][0]


def _texts(text: str, has_lines: bool) -> Iterator[Candidate]:
    """Yield the interpretations as a string: with `has_lines` without a surrounding pair of line breaks, then
    unchanged, then stripped."""
    forms = [text, text.strip()]
    if has_lines and len(text) > 1 and text.startswith("\n") and text.endswith("\n"):
        forms.insert(0, text[1:-1])
    for form in dict.fromkeys(forms):
        yield json.dumps(form, ensure_ascii=False), form


def _values(text: str) -> Iterator[Candidate]:
    """Yield the text's interpretation as JSON or one of `_WORDS`, or nothing if it is neither."""
    stripped = text.strip()
    stripped = _WORDS.get(stripped, stripped)
    try:
        yield stripped, json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
