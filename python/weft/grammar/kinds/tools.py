"""Tool calls as structural tags: the formats that models were trained on, from XGrammar's builders."""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import xgrammar as xgr

from weft import _core
from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.kinds.tool_style import tool_style_of
from weft.grammar.schema import structure
from weft.grammar.xgrammar.schema import opened_schema

Reasoning = Literal["enabled", "disabled", "auto"]

STRICT = "x-weft-strict"
"""Marks the parameters of a function that says `strict`, on their way through XGrammar's builder. The builder itself is
told nothing of it: it would leave the arguments open where it is false."""


def tool_styles() -> tuple[str, ...]:
    """The names of the formats that the installed XGrammar knows."""
    from xgrammar.builtin_structural_tag import _structural_tag_registry

    return tuple(sorted(_structural_tag_registry))


AUTO = "auto"
"""The style that a model's chat template tells."""
ANY = "qwen_3"
"""Any style that can be made with every option: to look at the tools with."""
NO_STYLE = "no chat template shows a format of tool calls that is known"


def tools_guide(
    tools: Sequence[Any], style: str, required: bool | str, *, strict: bool, **options: Any
) -> Guide:
    """The guide of `Guide.tools`: a structural tag; `options` as in `tools_tag`. With the style "auto" it becomes one
    when a model is asked (`for_model`). Raises `GuideError`."""
    if style != AUTO:
        return Guide("structural_tag", tools_tag(tools, style, required, **options), strict=bool(strict))
    tools_tag(tools, ANY, required, **options)  # what is wrong is said at once
    plain = [function_of(tool) for tool in tools]
    return Guide("tools", json.dumps([plain, required, options]), strict=bool(strict))


def for_model(guide: Guide, chat_template: str | Mapping[str, str] | None) -> Guide:
    """A guide of the style "auto" for a model with this chat template. Raises `GuideError` where that shows none."""
    tools, required, options = json.loads(guide.source)
    style = tool_style_of(chat_template)
    if style is None:
        raise GuideError(
            f"{NO_STYLE}; give the style (--tool-style, style= of Guide.tools): {', '.join(tool_styles())}"
        )
    return tools_guide(tools, style, required, strict=guide.strict, **options)


def tools_tag(
    tools: Sequence[Any],
    style: str,
    required: bool | str,
    *,
    reasoning: Reasoning,
    parallel: bool,
    any_order: bool,
    open_objects: bool,
    max_whitespace: int | None,
) -> str:
    """The structural tag's JSON text. Raises `GuideError`."""
    if isinstance(tools, str) or not isinstance(tools, Sequence) or not tools:
        raise GuideError('tools needs a list of at least one {"type": "function", "function": {...}}')
    if style not in tool_styles():
        raise GuideError(f"style is {style!r}; it must be one of {', '.join(tool_styles())}")
    functions = [function_of(tool) for tool in tools]
    names = [function["name"] for function in functions]
    if len(set(names)) < len(names):
        raise GuideError(f"tools has two functions of one name ({', '.join(names)})")
    if isinstance(required, str) and required not in names:
        raise GuideError(f"no tool is called {required!r}; the tools are {', '.join(names)}")
    choice: Any = "required" if required else "auto"
    if isinstance(required, str):
        choice = {"type": "function", "function": {"name": required}}
    try:
        tag = xgr.get_model_structural_tag(
            style,
            [{"type": "function", "function": _built(function, open_objects)} for function in functions],
            choice,
            reasoning=reasoning,
            parallel_tool_calls=parallel,
            any_order=any_order,
            max_whitespace_cnt=max_whitespace,
        )
    except (ValueError, AssertionError) as error:
        raise GuideError(f"tools in the style {style}: {error}") from None
    data = json.loads(tag.model_dump_json())
    _finish(data["format"])
    if required:
        _require(data["format"], style, reasoning)
    return json.dumps(data)


def _require(form: dict[str, Any], style: str, reasoning: Reasoning) -> None:
    """Tags that are told apart by what separates them may all be missing, as the builders make them."""
    if form["type"] == "tags_with_separator":
        if reasoning != "disabled":
            raise GuideError(
                f'the style {style} can\'t require a call where it reasons; give reasoning="disabled"'
            )
        form["at_least_one"] = True


def _built(function: dict[str, Any], open_objects: bool) -> dict[str, Any]:
    """The function with parameters that say what they leave open, as other schemas do."""
    parameters = opened_schema(function["parameters"], open_objects)
    if function.get("strict"):
        parameters[STRICT] = True
    return {**{key: value for key, value in function.items() if key != "strict"}, "parameters": parameters}


def _finish(form: Any) -> None:
    """Have all schemas of arguments be of objects, and those that are marked be enforced whole."""
    for node in _arguments(form):
        schema = node["json_schema"]
        if schema.pop(STRICT, False):
            node["strict"] = True
        node["json_schema"] = of_objects(schema, node.get("style", "json"))


def _arguments(form: Any) -> Iterator[dict[str, Any]]:
    if isinstance(form, list):
        for item in form:
            yield from _arguments(item)
    elif isinstance(form, dict):
        if form.get("type") == "json_schema":
            yield form
        else:
            yield from _arguments(list(form.values()))


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
    structure.check(given)
    types = given.get("type")
    if types == "object" or (types is None and CHOICES & set(given)):
        return given
    if types is not None and (isinstance(types, str) or "object" not in types):
        raise _wrong(name, "parameters.type", types, '"object", as arguments are')
    return {**given, "type": "object"}


def _wrong(name: str, member: str, value: Any, wanted: str) -> GuideError:
    return GuideError(f"the function {name!r}: {member} is {reprlib.repr(value)}; it must be {wanted}")
