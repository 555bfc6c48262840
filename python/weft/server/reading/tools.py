"""What a request says of its tools, and the guide that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.kinds.tool_functions import MEMBERS, function_of
from weft.server.errors import ApiError, quoted, told
from weft.server.protocol.chat import ChatBody
from weft.server.reading.thinking import Thinking

REASONING: dict[Thinking, Literal["enabled", "disabled", "auto"]] = {
    "none": "disabled",
    "closed": "disabled",
    "inside": "enabled",
    "open": "auto",
}


@dataclass(frozen=True)
class ToolChoice:
    """The tools that the model is told of; those that it may call, and whether it must."""

    told: Sequence[dict[str, Any]] = ()
    callable: Sequence[dict[str, Any]] = ()
    required: bool | str = False

    @classmethod
    def of(cls, body: ChatBody) -> ToolChoice:
        """Raises `ApiError` for a choice that the tools do not have."""
        tools, choice = body.tools or [], body.tool_choice
        functions = functions_of(tools)
        if not tools:
            if choice not in (None, "none", "auto"):
                raise ApiError("tool_choice needs tools", param="tool_choice")
            return cls()
        if choice == "none":
            return cls(tools)
        if choice in (None, "auto"):
            return cls(tools, tools)
        if choice == "required":
            return cls(tools, tools, True)
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            return cls._allowed(tools, choice, functions)
        name = _name(choice, ("name",))
        if name is None:
            raise _wrong(
                'tool_choice must be "auto", "none", "required", or name a function: {"type": "function", "function": '
                '{"name": ...}}'
            )
        return cls(tools, [_named(functions, name)], name)

    @classmethod
    def _allowed(
        cls, tools: Sequence[dict[str, Any]], choice: dict[str, Any], functions: dict[str, dict[str, Any]]
    ) -> ToolChoice:
        allowed = choice.get("allowed_tools", choice)
        if not isinstance(allowed, dict):
            raise _wrong("allowed_tools must be an object with mode and tools")
        if allowed is not choice:
            _check_members(choice, ("type", "allowed_tools"), "tool_choice")
        _check_members(allowed, ("type", "mode", "tools"), "allowed_tools")
        mode, given = allowed.get("mode"), allowed.get("tools")
        if mode not in (None, "auto", "required"):
            raise _wrong(f'allowed_tools.mode is {quoted(mode)}; it must be "auto" or "required"')
        names = [_name(one, MEMBERS) for one in given] if isinstance(given, list) else []
        if not names or None in names:
            raise _wrong("allowed_tools.tools must name functions")
        return cls(tools, [_named(functions, name) for name in names if name], mode == "required")

    def guide(self, style: str, thinking: Thinking, parallel: bool) -> Guide | None:
        """What bounds the calls; None where nothing may be called. Raises `GuideError`."""
        if not self.callable:
            return None
        return Guide.tools(
            self.callable,
            style=style,
            required=self.required,
            reasoning=REASONING[thinking],
            parallel=parallel,
            # As OpenAI has it: a function's parameters are enforced whole where it says so, whatever others say.
            strict=all(function_of(tool).get("strict") is True for tool in self.callable),
        )


def functions_of(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tools by their functions' names. Raises `ApiError` for what is wrong with one, also if it may not be called."""
    try:
        return {function_of(tool)["name"]: tool for tool in tools}
    except GuideError as error:
        raise ApiError(told(error), param="tools", code="guide_error") from None


def _name(choice: Any, members: tuple[str, ...]) -> str | None:
    """The name of the function that a choice is of, which has no other members than these."""
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function", choice)
    if not isinstance(function, dict):
        return None
    if function is not choice:
        _check_members(choice, ("type", "function"), "tool_choice")
    _check_members(function, ("type", *members), "tool_choice")
    name = function.get("name")
    return name if isinstance(name, str) else None


def _check_members(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    unknown = next((name for name, value in given.items() if name not in known and value is not None), None)
    if unknown is not None:
        raise _wrong(f"{what} has {quoted(unknown)}, which is not known; it may have {', '.join(known)}")


def _named(functions: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in functions:
        raise _wrong(f"tool_choice names {quoted(name)}, which is none of the tools")
    return functions[name]


def _wrong(message: str) -> ApiError:
    return ApiError(message, param="tool_choice")
