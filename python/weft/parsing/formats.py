"""Compiles a structural tag's format into a graph of nodes, which `states.py` walks.

The compiler works backwards: each format becomes the nodes that it may begin with, given the nodes that follow it.
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
"""Marks the tags around reasoning."""
LAYOUT = "\n\n"
"""Models write these line ends after their reasoning, even if the format has none."""
_OPAQUE = ("any_text", "regex", "grammar", "any_tokens")
Format = dict[str, Any]


class FormatReader:
    """Compiles the formats of a tag that lets a model call `functions`. Raises `GuideError` for unknown formats."""

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
        """The nodes that `form` may begin with, if `after` follows it."""
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
        """The alternative tags of one place."""
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
    """A literal that should come now, then its trailing whitespace."""
    if not literal.strip():
        return (Blanks(literal, after),) if literal else after
    return (Expected(spelled(literal), _blanks(literal, after)),)


def reasoning_until(ends: Sequence[str], after: Nodes) -> Nodes:
    """Reasoning up to the first of `ends`, then the layout after it."""
    has_blanks = any(isinstance(node, Blanks) for node in after)
    return _text_until(ends, after if has_blanks else (Blanks(LAYOUT, after),), is_reasoning=True)


def _text_until(ends: Sequence[str], after: Nodes, *, is_reasoning: bool) -> Nodes:
    spellings = [spelled(end) for end in ends if end.strip()]
    blanks = next((end for end in ends if end.strip()), "")
    return (Text(is_reasoning, spellings, _blanks(blanks, after)),)


def _blanks(literal: str, after: Nodes) -> Nodes:
    """The trailing whitespace of a literal, as a node before `after`."""
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
    """The parts of a call's header (None stands for digits) and its arguments' schema; None if the tag is no call."""
    content = tag["content"]
    elements = content["elements"] if content["type"] == "sequence" else [content]
    *before, last = elements
    if last["type"] != "json_schema" or any(e["type"] not in ("regex", "const_string") for e in before):
        return None
    parts = [e["value"] if e["type"] == "const_string" else None for e in before]
    return [tag["begin"], *parts], last["json_schema"]


def _call(tag: Format, parts: list[str | None], name: str, after: Nodes) -> list[Marker]:
    """The nodes of a call."""
    *_, form = tag["content"].get("elements", [tag["content"]])
    style = form.get("style", "json")
    if style not in STYLES and style != "json":
        raise GuideError(f"arguments in the style {style} can't be read")
    xml = None if style == "json" else (STYLES[style], Schema.of(form["json_schema"]))
    arguments = Arguments(name, xml, _ended(_ends(tag), after))
    return [Marker(header(parts, is_json=xml is None), (arguments,))]


Nodes = tuple["Node", ...]
"""The alternatives at one place of an answer. If there are none, the rest is text."""


@dataclass(eq=False)
class Text:
    """Text that ends only at one of `ends`."""

    is_reasoning: bool
    ends: list[Spelling]
    next: Nodes


@dataclass(eq=False)
class Marker:
    """A marker that may come here, or later in the text that may come here."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Expected:
    """A marker that should come now. If the model leaves it out, reading goes on without it."""

    spelling: Spelling
    next: Nodes


@dataclass(eq=False)
class Blanks:
    """Whitespace that the format has here; the model may leave it out."""

    text: str
    next: Nodes


@dataclass(eq=False)
class Arguments:
    """A call's arguments, as JSON or in an XML style (which needs their schema)."""

    name: str
    xml: tuple[XmlStyle, Schema] | None
    next: Nodes


@dataclass(eq=False)
class Loop:
    """Entries that may come any number of times. With `has_text`, user text may stand between them, and each of
    `triggers` is sure to begin an entry. With `is_needed`, the first entry comes before any text."""

    has_text: bool
    entries: Nodes
    next: Nodes
    triggers: tuple[str, ...] = ()
    is_needed: bool = False


Node = Text | Marker | Expected | Blanks | Arguments | Loop


_WORDS = ("name", "parameters", "arguments", "function", "functions", "tool", "call", "json", "index", "id")
"""Words that formats use around names: a function with such a name is the last choice if several names match."""


@dataclass(frozen=True)
class Function:
    """A tool's function: its name and the names of its parameters."""

    name: str
    parameters: frozenset[str]


def functions_of(tools: Sequence[Any]) -> list[Function]:
    """The functions of tools in OpenAI's form, in order. Raises `GuideError` for an entry that is no tool."""
    functions = []
    for tool in tools:
        data = tool.model_dump() if hasattr(tool, "model_dump") else tool
        function = data.get("function", data) if isinstance(data, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise GuideError(f"{data!r} is no tool")
        functions.append(Function(function["name"], _named(function.get("parameters"))))
    return functions


def called(calls: Sequence[tuple[str, Any]], functions: Sequence[Function]) -> list[str]:
    """The function name of each call at one place of a format. A call is its header and its arguments' schema.

    Usually all functions come in order; then position decides. Otherwise the name in the header does. Raises
    `GuideError` for a call that names no function.
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
    """Whether headers differ only in these names."""
    first, name = begins[0], names[0]
    places = (found.start() for found in re.finditer(f"(?={re.escape(name)})", first))
    around = ((first[:place], first[place + len(name) :]) for place in places)
    return any(
        all(begin == before + other + after for begin, other in zip(begins, names, strict=True))
        for before, after in around
    )


def _function_of(begin: str, schema: Any, functions: Sequence[Function]) -> str:
    """The name of the function that a header names; the most likely one if several match."""
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
    """Whether the header holds the name as a whole word; a prefix or number joined to it makes it another word."""
    return re.search(rf"(?<![\w:-]){re.escape(name)}(?![\w.-])", begin, re.ASCII) is not None


def _named(schema: Any) -> frozenset[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(properties) if isinstance(properties, dict) else frozenset()
