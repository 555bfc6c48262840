"""Which function each call of a format calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import GuideError

_WORDS = ("name", "parameters", "arguments", "function", "functions", "tool", "call", "json", "index", "id")
"""What formats write around names, so that a function may be called so and not be meant."""


@dataclass(frozen=True)
class Function:
    """A tool's function: its name, and those of its parameters."""

    name: str
    parameters: frozenset[str]


def functions_of(tools: Sequence[Any]) -> list[Function]:
    """The functions of OpenAI's tools, in their order. Raises `GuideError` for what is none."""
    functions = []
    for tool in tools:
        given = tool.model_dump() if hasattr(tool, "model_dump") else tool
        function = given.get("function", given) if isinstance(given, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise GuideError(f"{given!r} is no tool")
        functions.append(Function(function["name"], _named(function.get("parameters"))))
    return functions


def called(calls: Sequence[tuple[str, Any]], functions: Sequence[Function]) -> list[str]:
    """The names of the functions that calls are of, which are given by what begins them and the schema of their
    arguments: those of one place in a format, where all functions come in their order or only some. Raises
    `GuideError` for a call of none.
    """
    each, rest = divmod(len(calls), len(functions)) if functions else (0, 1)
    names = [function.name for function in functions]
    begins = [begin for begin, _ in calls]
    in_order = [name for name in names for _ in range(each)]
    alike = (_in_order(begins[i::each], names) for i in range(each))
    if not rest and all(map(_names, begins, in_order)) and all(alike):
        return in_order
    return [_one(begin, schema, functions) for begin, schema in calls]


def _in_order(begins: Sequence[str], names: Sequence[str]) -> bool:
    """Whether they differ in nothing but these names."""
    first, name = begins[0], names[0]
    places = (found.start() for found in re.finditer(f"(?={re.escape(name)})", first))
    around = ((first[:place], first[place + len(name) :]) for place in places)
    return any(
        all(begin == before + other + after for begin, other in zip(begins, names, strict=True))
        for before, after in around
    )


def _one(begin: str, schema: Any, functions: Sequence[Function]) -> str:
    """The function that one call is of: it is named there, and of several such the likeliest."""
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
    """Whether a name stands there, not as a part of a longer one; one with a prefix or a number is as it is."""
    return re.search(rf"(?<![\w:-]){re.escape(name)}(?![\w.-])", begin, re.ASCII) is not None


def _named(schema: Any) -> frozenset[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(properties) if isinstance(properties, dict) else frozenset()
