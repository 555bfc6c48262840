"""Compiles a structural tag's format into a graph of nodes, which the parser walks (`states.py`).

The compiler works backwards, from the end of the format. Given the nodes that follow a part, it returns the nodes that
the part may begin with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import GuideError
from weft.parsing.markers import Spelling, header, spelled
from weft.parsing.schema import Schema
from weft.parsing.xml import STYLES, XmlStyle

_REASONS = re.compile("think|thought|reason|analysis", re.IGNORECASE)
"""A tag of free text holds reasoning if its begin or end contains one of these words."""
LAYOUT = "\n\n"
"""Line breaks that models write after their reasoning, even if the format has none."""
_OPAQUE = ("any_text", "regex", "grammar", "any_tokens")
Format = dict[str, Any]


class FormatReader:
    """Compiles the format of a tag that lets a model call `functions`. Raises `GuideError` for an unknown format."""

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
        """Compile `form`. Returns the nodes that it may begin with, if the nodes `after` follow it."""
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
        """Compile tags that are alternatives at one place."""
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
    """Compile a literal that the format requires at this place, and its trailing whitespace."""
    if not literal.strip():
        return (Blanks(literal, after),) if literal else after
    return (Expected(spelled(literal), _blanks(literal, after)),)


def reasoning_until(ends: Sequence[str], after: Nodes) -> Nodes:
    """Compile reasoning up to the first of `ends`, and the line breaks after it."""
    has_blanks = any(isinstance(node, Blanks) for node in after)
    return _text_until(ends, after if has_blanks else (Blanks(LAYOUT, after),), is_reasoning=True)


def _text_until(ends: Sequence[str], after: Nodes, *, is_reasoning: bool) -> Nodes:
    spellings = [spelled(end) for end in ends if end.strip()]
    blanks = next((end for end in ends if end.strip()), "")
    return (Text(is_reasoning, spellings, _blanks(blanks, after)),)


def _blanks(literal: str, after: Nodes) -> Nodes:
    """Compile the trailing whitespace of a literal. Returns `after` if there is none."""
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
    """The parts of a call's header (None stands for digits) and its argument schema; None if the tag is not a call."""
    content = tag["content"]
    elements = content["elements"] if content["type"] == "sequence" else [content]
    *before, last = elements
    if last["type"] != "json_schema" or any(e["type"] not in ("regex", "const_string") for e in before):
        return None
    parts = [e["value"] if e["type"] == "const_string" else None for e in before]
    return [tag["begin"], *parts], last["json_schema"]


def _call(tag: Format, parts: list[str | None], name: str, after: Nodes) -> list[Marker]:
    """Compile a tag that is a call of the function `name`."""
    *_, form = tag["content"].get("elements", [tag["content"]])
    style = form.get("style", "json")
    if style not in STYLES and style != "json":
        raise GuideError(f"arguments in the style {style} can't be read")
    xml = None if style == "json" else (STYLES[style], Schema.of(form["json_schema"]))
    arguments = Arguments(name, xml, _ended(_ends(tag), after))
    return [Marker(header(parts, is_json=xml is None), (arguments,))]


Nodes = tuple["Node", ...]
"""The alternatives at one place of an answer. If there are none, the rest of the answer is text."""


@dataclass(eq=False)
class Text:
    """Text (or reasoning) up to one of `ends`."""

    is_reasoning: bool
    ends: list[Spelling]
    next: Nodes


@dataclass(eq=False)
class Marker:
    """A marker that is allowed at this place, possibly after text."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Expected:
    """A marker that the format requires at this place. If the model omits it, the parser continues with `next`."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Blanks:
    """Whitespace that the format has at this place. The model may omit it."""

    text: str
    next: Nodes


@dataclass(eq=False)
class Arguments:
    """A call's arguments: JSON, or an XML style with the argument schema."""

    name: str
    xml: tuple[XmlStyle, Schema] | None
    next: Nodes


@dataclass(eq=False)
class Loop:
    """Entries that may repeat, such as calls. With `has_text`, user text may come between them, and a text in
    `triggers` always begins an entry. With `is_needed`, the answer must begin with an entry."""

    has_text: bool
    entries: Nodes
    next: Nodes
    triggers: tuple[str, ...] = ()
    is_needed: bool = False


Node = Text | Marker | Expected | Blanks | Arguments | Loop


_WORDS = ("name", "parameters", "arguments", "function", "functions", "tool", "call", "json", "index", "id")
"""Words that formats use around function names. If several function names match, one of these is the last choice."""


@dataclass(frozen=True)
class Function:
    """A tool's function: its name, and the names of its parameters."""

    name: str
    parameters: frozenset[str]


def functions_of(tools: Sequence[Any]) -> list[Function]:
    """The functions of tools in OpenAI's form, in order. Raises `GuideError` for an entry that is not a tool."""
    functions = []
    for tool in tools:
        data = tool.model_dump() if hasattr(tool, "model_dump") else tool
        function = data.get("function", data) if isinstance(data, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise GuideError(f"{data!r} is no tool")
        functions.append(Function(function["name"], _named(function.get("parameters"))))
    return functions


def called(calls: Sequence[tuple[str, Any]], functions: Sequence[Function]) -> list[str]:
    """The function name for each alternative call at one place of a format. A call is given as its header and its
    argument schema.

    Usually the calls list all functions in order, so the position tells the name. Otherwise the name is searched for
    in the header. Raises `GuideError` for a header that names no function.
    """
    each, rest = divmod(len(calls), len(functions)) if functions else (0, 1)
    names = [function.name for function in functions]
    begins = [begin for begin, _ in calls]
    in_order = [name for name in names for _ in range(each)]
    alike = (_in_order(begins[i::each], names) for i in range(each))
    if not rest and all(map(_names, begins, in_order)) and all(alike):
        return in_order
    return [_function_of(begin, schema, functions) for begin, schema in calls]


def _in_order(begins: Sequence[str], names: Sequence[str]) -> bool:
    """Whether the headers are equal except for the function names, which come in this order."""
    first, name = begins[0], names[0]
    places = (found.start() for found in re.finditer(f"(?={re.escape(name)})", first))
    around = ((first[:place], first[place + len(name) :]) for place in places)
    return any(
        all(begin == before + other + after for begin, other in zip(begins, names, strict=True))
        for before, after in around
    )


def _function_of(begin: str, schema: Any, functions: Sequence[Function]) -> str:
    """The function name in a header. If several match, return the most likely one."""
    named = [function for function in functions if _names(begin, function.name)]
    if not named:
        raise GuideError(f"the tag that begins with {begin!r} calls none of the tools")
    parameters = _named(schema)
    best = max(
        named,
        key=lambda function: (
            function.parameters == parameters,
            function.name not in _WORDS,
            len(function.name),
        ),
    )
    return best.name


def _names(begin: str, name: str) -> bool:
    """Whether the header contains the name as a whole word, without a prefix or number joined to it."""
    return re.search(rf"(?<![\w:-]){re.escape(name)}(?![\w.-])", begin, re.ASCII) is not None


def _named(schema: Any) -> frozenset[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(properties) if isinstance(properties, dict) else frozenset()
