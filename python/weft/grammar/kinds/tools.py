"""Tool calls as structural tags: the formats that models were trained on, from XGrammar's builders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import xgrammar as xgr

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.kinds.tool_style import tool_style_of
from weft.grammar.schema import structure as json_schema
from weft.grammar.xgrammar.schema import opened_schema

Reasoning = Literal["enabled", "disabled", "auto"]

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def tool_styles() -> tuple[str, ...]:
    """The names of the formats that the installed XGrammar knows."""
    from xgrammar.builtin_structural_tag import _structural_tag_registry

    return tuple(sorted(_structural_tag_registry))


AUTO = "auto"
"""The style that a model's chat template tells."""
ANY = "qwen_3"
"""Any style that can be made with every option: to look at the tools with."""
NO_STYLE = "no chat template shows a format of tool calls that is known"


def make(tools: Sequence[Any], style: str, required: bool | str, *, strict: bool, **options: Any) -> Guide:
    """The guide of `Guide.tools`: a structural tag; `options` as in `tools_tag`. With the style "auto" it becomes one
    when a model is asked (`of_model`). Raises `GuideError`."""
    if style != AUTO:
        return Guide("structural_tag", tools_tag(tools, style, required, **options), strict=bool(strict))
    tools_tag(tools, ANY, required, **options)  # what is wrong is said at once
    plain = [_function(tool) for tool in tools]
    return Guide("tools", json.dumps([plain, required, options]), strict=bool(strict))


def of_model(guide: Guide, chat_template: str | Mapping[str, str] | None) -> Guide:
    """A guide of the style "auto" for a model with this chat template. Raises `GuideError` where that shows none."""
    tools, required, options = json.loads(guide.source)
    style = tool_style_of(chat_template)
    if style is None:
        raise GuideError(
            f"{NO_STYLE}; give the style (--tool-style, style= of Guide.tools): {', '.join(tool_styles())}"
        )
    return make(tools, style, required, strict=guide.strict, **options)


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
    functions = [_function(tool) for tool in tools]
    names = [function["name"] for function in functions]
    if len(set(names)) < len(names):
        raise GuideError(f"tools has two functions of one name ({', '.join(names)})")
    if isinstance(required, str) and required not in names:
        raise GuideError(f"required is {required!r}, but the tools are {', '.join(names)}")
    for function in functions:
        json_schema.check(function.get("parameters", {}))
    choice: Any = "required" if required else "auto"
    if isinstance(required, str):
        choice = {"type": "function", "function": {"name": required}}
    try:
        tag = xgr.get_model_structural_tag(
            style,
            [{"type": "function", "function": _opened(function, open_objects)} for function in functions],
            choice,
            reasoning=reasoning,
            parallel_tool_calls=parallel,
            any_order=any_order,
            max_whitespace_cnt=max_whitespace,
        )
    except (ValueError, AssertionError) as error:
        raise GuideError(f"tools in the style {style}: {error}") from None
    data = json.loads(tag.model_dump_json())
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


def _function(tool: Any) -> dict[str, Any]:
    """What a tool says of its function, which may also stand by itself."""
    given = tool.model_dump() if hasattr(tool, "model_dump") else tool
    if isinstance(given, dict) and given.get("type", "function") == "function":
        function = given.get("function", given)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            if not NAME.fullmatch(function["name"]):
                raise GuideError(
                    f"a function is called {function['name']!r}; a name has letters, digits, _, -, . and :"
                )
            return {key: value for key, value in function.items() if value is not None and key != "type"}
    raise GuideError(
        f'{given!r} is no tool; it must be {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}'
    )


def _opened(function: dict[str, Any], open_objects: bool) -> dict[str, Any]:
    """The function with parameters that say what they leave open, as other schemas do."""
    parameters = function.get("parameters")
    if parameters is None:
        return function
    return {**function, "parameters": opened_schema(parameters, open_objects)}
