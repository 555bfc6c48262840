"""Converts a chat to a `Job`: messages become a prompt, and tools or guide fields become a guide.

The chat template renders the prompt. The end of the prompt shows whether the model starts inside its reasoning
("thinking" in this module). This decides where the guide starts and how the answer is split. Tool calls are guided
too: `Guide.tools` allows only the calls that `tool_choice` permits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.client.chat import chat_text
from weft.client.model_text import ModelText
from weft.errors import GuideError, InputError
from weft.grammar.guide import Guide
from weft.grammar.kinds.tools import MEMBERS, function_of
from weft.parsing import AnswerParser, starts_inside
from weft.server.errors import ApiError, client_message, kind_of, quoted
from weft.server.ids import new_id
from weft.server.models import ServedModel
from weft.server.protocol.body import Body
from weft.server.protocol.generation import ChatBody, TemplateFields
from weft.server.reading.guides import Program, guide_of
from weft.server.reading.jobs import Job, job_of
from weft.server.tenants import Tenant


def chat_job(
    served: ServedModel, program: Program, tenant: Tenant, body: ChatBody, prefix: str = "chatcmpl-"
) -> Job:
    """Build the job for a chat. The answer's id begins with `prefix`. Raises `ApiError` and `WeftError`."""
    choice = ToolChoice.of(body)
    prompt = prompt_of(served.text, body.messages, body)
    if choice.shown:
        served.warn_of_tools()
    thinking = thinking_of(served.family.thinking, prompt)
    guide, is_tools = _guide(served, program, body, choice, thinking)
    given = _prediction(served, body)
    served.text.check_text(prompt)
    tokens = served.text.tokenizer_for("a conversation").encode_chat(prompt)
    answer_id = new_id(prefix, body.request_id)
    job = job_of(served, body, [tokens], tenant, answer_id, guide=guide, given=given)
    for _ in range(body.num_answers):
        if is_tools and guide is not None:
            job.parsers.append(AnswerParser.of_tools(guide, choice.callable))
        else:
            markers = served.family.thinking
            job.parsers.append(reasoning_parser(thinking, markers, is_guided=guide is not None))
    return job


def _guide(
    served: ServedModel, program: Program, body: ChatBody, choice: ToolChoice, thinking: Thinking
) -> tuple[Guide | None, bool]:
    """Return the guide for the answer, and whether that is the guide of the tools."""
    guide = guide_of(body, served.handles, program)
    tools = choice.guide(served.family.tool_style, thinking, parallel=body.parallel_tool_calls is not False)
    budget = body.thinking_token_budget
    if body.ignores_idle_budget and (tools is not None or guide is None or not _may_think(thinking)):
        budget = None
    if tools is None:
        return guide_after_thinking(guide, thinking, served.family.thinking, budget), False
    if guide is not None:
        raise ApiError(
            "an answer has one guide: leave out the tools or the other guide; with tool_choice none, the model sees "
            "the tools and calls none",
            param="tools",
        )
    if budget is not None:
        raise ApiError("thinking_token_budget does not go with tools", param="thinking_token_budget")
    return tools, True


def _prediction(served: ServedModel, body: ChatBody) -> str:
    """Return the text of `prediction`, whose tokens the engine uses as drafts; "" without one."""
    prediction = body.prediction
    if prediction is None:
        return ""
    if "given" not in served.client.built.speculation.drafters:
        raise ApiError(
            "this model is served without drafts of what is predicted; leave prediction out",
            param="prediction",
            code="unsupported_parameter",
        )
    content = prediction.get("content") if prediction.get("type") == "content" else None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ApiError('prediction must be {"type": "content", "content": a text}', param="prediction")
    return content


def shared_fields(kind: type[Body]) -> set[str]:
    """The names of the fields that another route's body shares with a chat's, without those that have no effect."""
    return (kind.model_fields.keys() & ChatBody.model_fields.keys()) - ChatBody.NO_EFFECT.keys()


# -- messages

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")
"""The types of content parts that hold text."""
RESERVED = (
    "self",
    "tools",
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "chat_template",
)
"""Template variables that `chat_template_kwargs` may not set, because other fields or the server set them."""


def prompt_of(text: ModelText, messages: Sequence[Mapping[str, Any]], fields: TemplateFields) -> str:
    """Render the prompt with the model's chat template. Raises `ApiError`, also if the template itself fails."""
    variables = fields.template_arguments
    wrong = next((name for name in variables if name in RESERVED), None)
    if wrong is not None:
        raise ApiError(f"chat_template_kwargs has {wrong}, which is a field", param="chat_template_kwargs")
    tokenizer = text.tokenizer_for("a conversation")
    if not tokenizer.chat_template:
        raise ApiError("this model has no chat template; use /v1/completions", code="no_chat_template")
    checked = []
    for place, message in enumerate(messages):
        check_message(message, f"messages.{place}")
        # OpenAI renamed the system role to developer, but chat templates know only the old name.
        role = "system" if message["role"] == "developer" else message["role"]
        checked.append({**message, "role": role})
    try:
        return chat_text(
            tokenizer,
            checked,
            {
                "tools": fields.tools or None,
                "chat_template_kwargs": variables,
                "add_generation_prompt": fields.add_generation_prompt,
                "continue_final_message": fields.continue_final_message,
            },
        )
    except InputError as error:
        raise ApiError(client_message(error), param="messages") from None


def check_message(message: Mapping[str, Any], place: str) -> None:
    """Raise `ApiError` for an unknown role or invalid content. `place` is the message's path in the body."""
    role = message.get("role")
    if role not in ROLES:
        fault = f"is {quoted(role)}" if "role" in message else "is missing"
        raise ApiError(
            f"{place}.role {fault}; it must be one of {', '.join(ROLES)}", param=place.partition(".")[0]
        )
    # An assistant's message may have null content: it may consist of only reasoning or only tool calls.
    may_be_empty = role == "assistant" and ("content" in message or bool(message.get("tool_calls")))
    if message.get("content") is not None or not may_be_empty:
        check_content(message, place)


def check_content(message: Mapping[str, Any], place: str, name: str = "content") -> None:
    """Raise `ApiError` unless the member `name` is a string or a list of text parts."""
    field, content = place.partition(".")[0], message.get(name)
    if not isinstance(content, str | list):
        fault = f"is {kind_of(content)}" if name in message else "is missing"
        raise ApiError(f"{place}.{name} {fault}; it must be a text or a list of parts", param=field)
    for i, part in enumerate(content if isinstance(content, list) else ()):
        part_fault = _part_fault(part)
        if part_fault is not None:
            raise ApiError(f"{place}.{name}.{i}{part_fault}", param=field)


def _part_fault(part: Any) -> str | None:
    """Return the end of an error message that begins with the part's path; None if the part is valid text."""
    if isinstance(part, str):
        return None
    if not isinstance(part, dict):
        return f" is {kind_of(part)}; it must be an object"
    kind = part.get("type", "text")
    if kind not in TEXT_PARTS:
        return f" is of the type {quoted(kind)}; models here read parts of the type 'text'"
    if not isinstance(part.get("text"), str):
        return ".text must be a text" if "text" in part else ".text is missing"
    return None


# -- thinking

Thinking = Literal["none", "inside", "closed", "open"]
"""The state of the reasoning at the end of the prompt:

- none: the model has no reasoning.
- inside: the prompt has opened the reasoning.
- closed: the prompt has closed it.
- open: the model may open it.
"""


def _may_think(thinking: Thinking) -> bool:
    """Return whether the answer may begin with reasoning."""
    return thinking in ("inside", "open")


def thinking_of(markers: tuple[str, str] | None, prompt: str) -> Thinking:
    """Return the state of the reasoning at the end of a prompt. `markers` are its begin and end markers; None for a
    model without reasoning."""
    if markers is None:
        return "none"
    if starts_inside(prompt, *markers):
        return "inside"
    return "closed" if prompt.rstrip().endswith(markers[1]) else "open"


def guide_after_thinking(
    guide: Guide | None, thinking: Thinking, markers: tuple[str, str] | None, budget: int | None
) -> Guide | None:
    """Return the guide, delayed until the reasoning has ended. `budget` limits the number of reasoning tokens. Raises
    `ApiError` for a budget without a guide or without reasoning."""
    thinks = markers is not None and _may_think(thinking)
    if budget is not None and not (thinks and guide is not None):
        raise ApiError(
            "thinking_token_budget bounds the thinking before a guide, of a model that thinks; give a guide, such as "
            "response_format",
            param="thinking_token_budget",
        )
    if guide is None or markers is None or not thinks:
        return guide
    return Guide.after(markers[1], guide, max_free_tokens=budget)


def reasoning_parser(
    thinking: Thinking, markers: tuple[str, str] | None, *, is_guided: bool
) -> AnswerParser | None:
    """Return a parser that splits reasoning from content in an answer without tool calls; None if the whole answer is
    content."""
    if markers is None or thinking in ("none", "closed"):
        return None
    begin, end = markers
    # The guide starts after the end marker, so all text before the marker is reasoning, even without a begin marker.
    return AnswerParser.of_reasoning(begin, end, starts_inside=thinking == "inside" or is_guided)


# -- tools

REASONING: dict[Thinking, Literal["enabled", "disabled", "auto"]] = {
    "none": "disabled",
    "closed": "disabled",
    "inside": "enabled",
    "open": "auto",
}
"""The `reasoning` argument of `Guide.tools` for each state of the reasoning."""


@dataclass(frozen=True)
class ToolChoice:
    """The effect of `tools` and `tool_choice`. The template shows the tools `shown`, and the model may call those in
    `callable`. `required` is True if it must call one of them, or the name of the function that it must call."""

    shown: Sequence[dict[str, Any]] = ()
    callable: Sequence[dict[str, Any]] = ()
    required: bool | str = False

    @classmethod
    def of(cls, body: ChatBody) -> ToolChoice:
        """Read `tools` and `tool_choice`. Raises `ApiError` if they do not fit together."""
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
            return cls._of_allowed_tools(tools, choice, functions)
        name = _function_name(choice, ("name",))
        if name is None:
            raise _wrong_choice(
                'tool_choice must be "auto", "none", "required", or name a function: {"type": "function", "function": '
                '{"name": ...}}'
            )
        return cls(tools, [_tool_named(functions, name)], name)

    @classmethod
    def _of_allowed_tools(
        cls, tools: Sequence[dict[str, Any]], choice: dict[str, Any], functions: dict[str, dict[str, Any]]
    ) -> ToolChoice:
        # Chats nest the members in allowed_tools. The flat form of /v1/responses is accepted too.
        allowed = choice.get("allowed_tools", choice)
        if not isinstance(allowed, dict):
            raise _wrong_choice("allowed_tools must be an object with mode and tools")
        if allowed is not choice:
            _check_choice_members(choice, ("type", "allowed_tools"), "tool_choice")
        _check_choice_members(allowed, ("type", "mode", "tools"), "allowed_tools")
        mode, entries = allowed.get("mode"), allowed.get("tools")
        if mode not in (None, "auto", "required"):
            raise _wrong_choice(f'allowed_tools.mode is {quoted(mode)}; it must be "auto" or "required"')
        names = [_function_name(entry, MEMBERS) for entry in entries] if isinstance(entries, list) else []
        if not names or None in names:
            raise _wrong_choice("allowed_tools.tools must name functions")
        return cls(tools, [_tool_named(functions, name) for name in names if name], mode == "required")

    def guide(self, style: str, thinking: Thinking, parallel: bool) -> Guide | None:
        """Return the guide that constrains the calls; None if the model may not call any tool. Raises
        `GuideError`."""
        if not self.callable:
            return None
        return Guide.tools(
            self.callable,
            style=style,
            required=self.required,
            reasoning=REASONING[thinking],
            parallel=parallel,
            # OpenAI fully enforces the parameters only of functions with `strict: true`. One guide covers all
            # functions, so it is strict only if each of them is.
            strict=all(function_of(tool).get("strict") is True for tool in self.callable),
        )


def functions_of(tools: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the tools by function name. Raises `ApiError` for an invalid tool, even one that may not be called."""
    try:
        return {function_of(tool)["name"]: tool for tool in tools}
    except GuideError as error:
        raise ApiError(client_message(error), param="tools", code="guide_error") from None


def _function_name(choice: Any, members: tuple[str, ...]) -> str | None:
    """Return the function name in `choice`; None if `choice` does not name a function. `members` are the allowed
    members besides `type`."""
    if not isinstance(choice, dict) or choice.get("type", "function") != "function":
        return None
    function = choice.get("function", choice)
    if not isinstance(function, dict):
        return None
    if function is not choice:
        _check_choice_members(choice, ("type", "function"), "tool_choice")
    _check_choice_members(function, ("type", *members), "tool_choice")
    name = function.get("name")
    return name if isinstance(name, str) else None


def _check_choice_members(choice: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    unknown = next((name for name, value in choice.items() if name not in known and value is not None), None)
    if unknown is not None:
        raise _wrong_choice(
            f"{place} has {quoted(unknown)}, which is not known; it may have {', '.join(known)}"
        )


def _tool_named(functions: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in functions:
        raise _wrong_choice(f"tool_choice names {quoted(name)}, which is none of the tools")
    return functions[name]


def _wrong_choice(message: str) -> ApiError:
    return ApiError(message, param="tool_choice")
