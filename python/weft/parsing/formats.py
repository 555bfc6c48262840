"""Turns a structural tag into nodes: each format into those that it begins with, given those that come after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import GuideError
from weft.parsing.functions import Function, called
from weft.parsing.nodes import Arguments, Blanks, Expected, Loop, Marker, Nodes, Text
from weft.parsing.schema import Schema
from weft.parsing.spelling import header, spelled
from weft.parsing.xml_styles import STYLES

_REASONS = re.compile("think|thought|reason|analysis", re.IGNORECASE)
"""In the markers around text that the model thinks in."""
LAYOUT = "\n\n"
"""What models write after their reasoning, whether their format has it or not."""
_OPAQUE = ("any_text", "regex", "grammar", "any_tokens")
Format = dict[str, Any]


class FormatReader:
    """Reads the formats of a tag that lets a model call `functions`. Raises `GuideError` for one it does not know."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = functions
        self._kinds: dict[str, Callable[[Format, Nodes], Nodes]] = {
            "const_string": lambda form, after: expected(form["value"], after),
            "sequence": self._sequence,
            "or": self._either,
            "optional": lambda form, after: (*self.nodes(form["content"], after), *after),
            "tag": lambda form, after: self._tags([form], after),
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def nodes(self, form: Format, after: Nodes) -> Nodes:
        """What a format begins with."""
        kind = form.get("type")
        if kind in _OPAQUE:
            return (Text(False, [], after),)
        if kind not in self._kinds:
            raise GuideError(f"answers in a format of the type {kind!r} can't be read")
        return self._kinds[kind](form, after)

    def _sequence(self, form: Format, after: Nodes) -> Nodes:
        for element in reversed(form["elements"]):
            after = self.nodes(element, after)
        return after

    def _either(self, form: Format, after: Nodes) -> Nodes:
        return tuple(node for element in form["elements"] for node in self.nodes(element, after))

    def _triggered(self, form: Format, after: Nodes) -> Nodes:
        loop = Loop(True, (), after, tuple(form["triggers"]), bool(form.get("at_least_one")))
        loop.entries = self._tags(form["tags"], after if form.get("stop_after_first") else (loop,))
        return (loop,)

    def _separated(self, form: Format, after: Nodes) -> Nodes:
        loop = Loop(False, (), after)
        again = (*expected(form["separator"], (loop,)), *after) if form["separator"].strip() else (loop,)
        loop.entries = self._tags(form["tags"], after if form.get("stop_after_first") else again)
        return (loop,)

    def _tags(self, tags: Sequence[Format], after: Nodes) -> Nodes:
        """The tags of one place."""
        calls = [(tag, parts) for tag in tags if (parts := _call_parts(tag)) is not None]
        begins = [("".join(part or "0" for part in parts), schema) for _, (parts, schema) in calls]
        names = iter(called(begins, self._functions))
        nodes: list[Any] = []
        for tag in tags:
            parts = _call_parts(tag)
            nodes += self._tag(tag, after) if parts is None else _call(tag, parts[0], next(names), after)
        return tuple(nodes)

    def _tag(self, tag: Format, after: Nodes) -> Nodes:
        begin, content, ends = tag["begin"], tag["content"], _ends(tag)
        if content["type"] in _OPAQUE:
            inside = self._text(begin, ends, after)
        else:
            inside = self.nodes(content, _ended(ends, after))
        return (Marker(spelled(begin), _blanks(begin, inside)),) if begin.strip() else inside

    def _text(self, begin: str, ends: list[str], after: Nodes) -> Nodes:
        if _REASONS.search(" ".join([begin, *ends])):
            return reasoning_until(ends, after)
        return _text_until(ends, after, is_reasoning=False)


def expected(literal: str, after: Nodes) -> Nodes:
    """A literal that should come, and the blanks after it."""
    if not literal.strip():
        return (Blanks(literal, after),) if literal else after
    return (Expected(spelled(literal), _blanks(literal, after)),)


def reasoning_until(ends: Sequence[str], after: Nodes) -> Nodes:
    """Text that the model thinks in, up to the first of `ends`, with the layout after it."""
    has_blanks = any(isinstance(node, Blanks) for node in after)
    return _text_until(ends, after if has_blanks else (Blanks(LAYOUT, after),), is_reasoning=True)


def _text_until(ends: Sequence[str], after: Nodes, *, is_reasoning: bool) -> Nodes:
    spellings = [spelled(end) for end in ends if end.strip()]
    blanks = next((end for end in ends if end.strip()), "")
    return (Text(is_reasoning, spellings, _blanks(blanks, after)),)


def _blanks(literal: str, after: Nodes) -> Nodes:
    """The blanks that a literal ends with."""
    blanks = literal[len(literal.rstrip()) :]
    return (Blanks(blanks, after),) if blanks else after


def _ends(tag: Format) -> list[str]:
    end = tag["end"]
    ends = end if isinstance(end, list) else [end]
    if not isinstance(tag["begin"], str) or not all(isinstance(each, str) for each in ends):
        raise GuideError("answers in a format whose tags are tokens can't be read")
    return ends


def _ended(ends: list[str], after: Nodes) -> Nodes:
    return tuple(node for end in ends for node in expected(end, after)) or after


def _call_parts(tag: Format) -> tuple[list[str | None], Any] | None:
    """What begins a call, None for digits, and the schema of its arguments; None for a tag that is no call."""
    content = tag["content"]
    elements = content["elements"] if content["type"] == "sequence" else [content]
    *before, last = elements
    if last["type"] != "json_schema" or any(e["type"] not in ("regex", "const_string") for e in before):
        return None
    parts = [e["value"] if e["type"] == "const_string" else None for e in before]
    return [tag["begin"], *parts], last["json_schema"]


def _call(tag: Format, parts: list[str | None], name: str, after: Nodes) -> list[Marker]:
    """The node of a call."""
    *_, form = tag["content"].get("elements", [tag["content"]])
    style = form.get("style", "json")
    if style not in STYLES and style != "json":
        raise GuideError(f"arguments in the style {style} can't be read")
    xml = None if style == "json" else (STYLES[style], Schema.of(form["json_schema"]))
    arguments = Arguments(name, xml, _ended(_ends(tag), after))
    return [Marker(header(parts, is_json=xml is None), (arguments,))]
