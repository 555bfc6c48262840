"""What a request says of its tools, and the guide that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.grammar.guide import Guide
from weft.server.errors import ApiError, quoted
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
            return cls._allowed(tools, choice.get("allowed_tools", choice))
        name = _name(choice)
        if name is None:
            raise ApiError(
                'tool_choice must be "auto", "none", "required", or name a function: {"type": "function", "function": '
                '{"name": ...}}',
                param="tool_choice",
            )
        return cls(tools, _named(tools, [name]), name)

    @classmethod
    def _allowed(cls, tools: Sequence[dict[str, Any]], choice: Any) -> ToolChoice:
        named = choice.get("tools") if isinstance(choice, dict) else None
        names = [_name(one) for one in named] if isinstance(named, list) else []
        if not names or None in names:
            raise ApiError("allowed_tools.tools must name functions", param="tool_choice")
        allowed = _named(tools, [name for name in names if name is not None])
        return cls(tools, allowed, choice.get("mode") == "required")

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
            # As OpenAI has it: a function's parameters are enforced whole where it says so.
            strict=all(_function(tool).get("strict") is True for tool in self.callable),
        )


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    return function if isinstance(function, dict) else {}


def _name(choice: Any) -> str | None:
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        return None
    name = _function(choice).get("name")
    return name if isinstance(name, str) else None


def _named(tools: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    known = {name: tool for tool in tools if isinstance(name := _function(tool).get("name"), str)}
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        raise ApiError(
            f"tool_choice names {quoted(missing)}, which is none of the tools", param="tool_choice"
        )
    return [known[name] for name in names]
