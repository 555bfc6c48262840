"""Tool calls as structural tags, in the formats that models were trained on. XGrammar's builders make the tags.

Tools are in OpenAI's form. An unknown member of a function is an error that names it.
"""

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
from weft.grammar.guide import TIDY, Guide, MaxWhitespace
from weft.grammar.schema import structure
from weft.grammar.xgrammar.schema import opened_schema
from weft.grammar.xgrammar.separators import LAYOUT
from weft.tokenizer.formats import tool_style_of

Reasoning = Literal["enabled", "disabled", "auto"]

STRICT = "x-weft-strict"
"""Carries a function's `strict` through XGrammar's builder, as a keyword of the parameters. The builder does not get
`strict` itself, because it would leave the arguments unconstrained if that is false."""


def tool_styles() -> tuple[str, ...]:
    """The names of the formats that the installed XGrammar knows."""
    from xgrammar.builtin_structural_tag import _structural_tag_registry

    return tuple(sorted(_structural_tag_registry))


AUTO = "auto"
"""The style to detect from the model's chat template."""
ANY = "qwen_3"
"""A style that supports every option. Tools of the style "auto" are checked with it before the style is known."""
NO_STYLE = (
    "the model's chat template shows no known format of tool calls; a model that was trained on calls has one"
)


def tools_guide(
    tools: Sequence[Any],
    style: str,
    required: bool | str,
    *,
    strict: bool,
    max_whitespace: MaxWhitespace,
    **options: Any,
) -> Guide:
    """The guide of `Guide.tools`: a structural tag, with `options` as in `tools_tag`. For the style "auto" the guide
    stores the tools, and `for_model` makes the tag later. Raises `GuideError`."""
    # The tag itself only bounds whitespace. The tag's grammar is made tidy later (`xgrammar/separators.py`).
    bound = LAYOUT if max_whitespace == TIDY else max_whitespace
    if style != AUTO:
        tag = tools_tag(tools, style, required, max_whitespace=bound, **options)
        tidy: MaxWhitespace = TIDY if max_whitespace == TIDY else None
        return Guide("structural_tag", tag, tidy, strict=bool(strict))
    tools_tag(tools, ANY, required, max_whitespace=bound, **options)  # reports errors in the tools now
    plain = [function_of(tool) for tool in tools]
    stored = {**options, "max_whitespace": max_whitespace}
    return Guide("tools", json.dumps([plain, required, stored]), strict=bool(strict))


def for_model(guide: Guide, chat_template: str | Mapping[str, str] | None) -> Guide:
    """Resolve a guide of the style "auto" for a model's chat template. Raises `GuideError` if the template shows no
    known format."""
    tools, required, options = json.loads(guide.source)
    style = tool_style_of(chat_template)
    if style is None:
        raise GuideError(
            f"{NO_STYLE}. Otherwise give a style, such as {ANY}, as style= of Guide.tools or --tool-style: "
            f"{', '.join(tool_styles())}"
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
    if required and style == CHANNELS:
        data["format"] = _with_call(data["format"])
    elif required:
        _require(data["format"])
    return json.dumps(data)


CHANNELS = "harmony"
"""The style of gpt-oss: an answer is a list of messages, and calls are messages."""


def _require(form: dict[str, Any]) -> None:
    """Require a call in a format with separated tags, in place. XGrammar's builders allow such a format to have no tag
    at all."""
    if form["type"] == "tags_with_separator":
        form["at_least_one"] = True


def _with_call(form: dict[str, Any]) -> dict[str, Any]:
    """The format of messages that end with calls, at least one: other messages may come before the first call."""
    if form["type"] == "or":  # at most one call; the first alternative has none
        return {**form, "elements": form["elements"][1:]}
    if form["type"] != "tags_with_separator":
        return form if form["type"] != "optional" else form["content"]
    others = [tag for tag in form["tags"] if _is_analysis(tag)]
    calls = {**form, "tags": [tag for tag in form["tags"] if tag not in others], "at_least_one": True}
    if not others:
        return calls
    before = {**form, "tags": others, "at_least_one": True}
    separator = {"type": "const_string", "value": form["separator"]}
    return {"type": "or", "elements": [calls, {"type": "sequence", "elements": [before, separator, calls]}]}


def _is_analysis(tag: dict[str, Any]) -> bool:
    return bool(tag["begin"].startswith("<|channel|>analysis<"))


def _built(function: dict[str, Any], open_objects: bool) -> dict[str, Any]:
    """The function for the builder, with `strict` moved into its parameters. The parameters state explicitly whether
    objects are open (`opened_schema`)."""
    parameters = opened_schema(function["parameters"], open_objects)
    if function.get("strict"):
        parameters[STRICT] = True
    return {**{key: value for key, value in function.items() if key != "strict"}, "parameters": parameters}


def _finish(form: Any) -> None:
    """Apply `of_objects` to every argument schema, and turn its `STRICT` mark into `strict` of the tag, in place."""
    for node in _arguments(form):
        schema = node["json_schema"]
        if schema.pop(STRICT, False):
            node["strict"] = True
        node["json_schema"] = of_objects(schema, node.get("style", "json"))


def _arguments(form: Any) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a format that hold an argument schema."""
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
"""Members that describe a function's results, in tools of Hugging Face, Google and OpenAI. They are allowed but
dropped: only chat templates read them."""
MAX_DEPTH = 240
"""The deepest nesting of parameters. pydantic can't serialize a tag that nests 255 deep, and a format adds levels."""
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""A function without parameters takes an empty object, as with OpenAI."""
CHOICES = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"}
"""Keywords that may keep a library from enforcing a `type` beside them."""
FORM = '{"type": "function", "function": {"name": ..., "parameters": ...}}'


def function_of(tool: Any) -> dict[str, Any]:
    """The function of a tool, checked; `tool` may also be the function alone. Returns its `MEMBERS`. Its `parameters`
    have the type "object", or no type if they have alternatives (`CHOICES`). Raises `GuideError`."""
    function = _given(tool)
    name = function.get("name")
    if not isinstance(name, str):
        raise GuideError(f"{reprlib.repr(tool)} is not a tool; it must be {FORM}")
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
    """Add the type "object" to an argument schema without a type. An XML style needs none: it can write nothing but an
    object, and would not enforce a type beside alternatives."""
    return schema if "type" in schema or style != "json" else {"type": "object", **schema}


def _given(tool: Any) -> dict[str, Any]:
    """The members of a tool's function that are not null, without `type`. Raises `GuideError`."""
    tool_members = tool.model_dump() if hasattr(tool, "model_dump") else tool
    if not isinstance(tool_members, Mapping) or tool_members.get("type", "function") != "function":
        raise GuideError(f"{reprlib.repr(tool_members)} is not a tool; it must be {FORM}")
    function = tool_members
    if "function" in tool_members:
        function = tool_members["function"]
        _check_members(tool_members, ("type", "function"), "a tool")
        if not isinstance(function, Mapping):
            raise GuideError(f"{reprlib.repr(tool_members)} is not a tool; it must be {FORM}")
    return {key: value for key, value in function.items() if value is not None and key != "type"}


def _check_members(members: Mapping[Any, Any], known: tuple[str, ...], owner: str) -> None:
    for key, value in members.items():
        if key in known or value is None:
            continue
        if owner == "a tool" and key in MEMBERS:
            raise GuideError(f"a tool has {key} beside its function; move it into the function")
        similar = difflib.get_close_matches(str(key)[:100], known, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"it may have {', '.join(known)}"
        raise GuideError(f"{owner} has {reprlib.repr(key)}, which is not known; {hint}")


def _parameters(name: str, schema: Any) -> dict[str, Any]:
    if schema is None or schema == {}:
        return NO_PARAMETERS
    if not isinstance(schema, dict):
        raise _wrong(name, "parameters", schema, "a JSON schema of objects")
    try:
        depth = _core.json_depth(json.dumps(schema))
    except (TypeError, ValueError) as error:
        raise GuideError(f"the function {name!r}: parameters are not plain JSON data: {error}") from None
    except RecursionError:
        depth = MAX_DEPTH + 1
    if depth > MAX_DEPTH:
        raise GuideError(f"the function {name!r}: parameters nest more than {MAX_DEPTH} deep")
    structure.check(schema)
    types = schema.get("type")
    if types == "object" or (types is None and CHOICES & set(schema)):
        return schema
    if types is not None and (isinstance(types, str) or "object" not in types):
        raise _wrong(name, "parameters.type", types, '"object", as arguments are')
    return {**schema, "type": "object"}


def _wrong(name: str, member: str, value: Any, wanted: str) -> GuideError:
    return GuideError(f"the function {name!r}: {member} is {reprlib.repr(value)}; it must be {wanted}")
