"""What a tool says of its function, as OpenAI's API has it. Each member is known, or an error names it."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from weft import _core
from weft.errors import GuideError
from weft.grammar.schema import structure as json_schema

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
MEMBERS = ("name", "description", "parameters", "strict")
RETURNS = ("return", "response", "output_schema")
"""What Hugging Face's, Google's and OpenAI's tools say of a function's results: only templates may read it."""
MAX_DEPTH = 240
"""How deep parameters may nest: pydantic writes no tag that nests 255 deep, and a format's own levels are around."""
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""As OpenAI has it, a function without parameters has an empty list of them."""
CHOICES = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"}
"""Beside these a type is not always enforced."""
FORM = '{"type": "function", "function": {"name": ..., "parameters": ...}}'


def function_of(tool: Any) -> dict[str, Any]:
    """The function of a tool, which may also stand by itself: its `name`, `parameters`, which are a schema of objects,
    and what else is there of `MEMBERS`. Raises `GuideError`."""
    function = _given(tool)
    name = function.get("name")
    if not isinstance(name, str):
        raise GuideError(f"{reprlib.repr(tool)} is no tool; it must be {FORM}")
    if not NAME.fullmatch(name):
        raise GuideError(f"a function is called {name!r}; a name has letters, digits, _, -, . and :")
    _check_members(function, (*MEMBERS, *RETURNS), f"the function {name!r}")
    if not isinstance(function.get("description", ""), str):
        raise _wrong(name, "description", function["description"], "a text")
    if not isinstance(function.get("strict", False), bool):
        raise _wrong(name, "strict", function["strict"], "true or false")
    parameters = _parameters(name, function.get("parameters"))
    return {key: value for key, value in function.items() if key in MEMBERS} | {"parameters": parameters}


def of_objects(schema: dict[str, Any], style: str) -> dict[str, Any]:
    """A schema of arguments in a style, which are an object also where its alternatives do not say so. In XML nothing
    else is written, and a type beside them would be one that is not enforced."""
    return schema if "type" in schema or style != "json" else {"type": "object", **schema}


def _given(tool: Any) -> dict[str, Any]:
    """The members of a function that say something."""
    given = tool.model_dump() if hasattr(tool, "model_dump") else tool
    if not isinstance(given, Mapping) or given.get("type", "function") != "function":
        raise GuideError(f"{reprlib.repr(given)} is no tool; it must be {FORM}")
    function = given
    if "function" in given:
        function = given["function"]
        _check_members(given, ("type", "function"), "a tool")
        if not isinstance(function, Mapping):
            raise GuideError(f"{reprlib.repr(given)} is no tool; it must be {FORM}")
    return {key: value for key, value in function.items() if value is not None and key != "type"}


def _check_members(given: Mapping[Any, Any], known: tuple[str, ...], what: str) -> None:
    for key, value in given.items():
        if key in known or value is None:
            continue
        if what == "a tool" and key in MEMBERS:
            raise GuideError(f"a tool has {key} beside its function; it belongs into it")
        near = difflib.get_close_matches(str(key)[:100], known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it may have {', '.join(known)}"
        raise GuideError(f"{what} has {reprlib.repr(key)}, which is not known; {hint}")


def _parameters(name: str, given: Any) -> dict[str, Any]:
    if given is None or given == {}:
        return NO_PARAMETERS
    if not isinstance(given, dict):
        raise _wrong(name, "parameters", given, "a JSON schema of objects")
    try:
        depth = _core.json_depth(json.dumps(given))
    except (TypeError, ValueError) as error:
        raise GuideError(f"the function {name!r}: parameters are not plain JSON data: {error}") from None
    except RecursionError:
        depth = MAX_DEPTH + 1
    if depth > MAX_DEPTH:
        raise GuideError(f"the function {name!r}: parameters nest more than {MAX_DEPTH} deep")
    json_schema.check(given)
    types = given.get("type")
    if types == "object" or (types is None and CHOICES & set(given)):
        return given
    if types is not None and (isinstance(types, str) or "object" not in types):
        raise _wrong(name, "parameters.type", types, '"object", as arguments are')
    return {**given, "type": "object"}


def _wrong(name: str, member: str, value: Any, wanted: str) -> GuideError:
    return GuideError(f"the function {name!r}: {member} is {reprlib.repr(value)}; it must be {wanted}")
