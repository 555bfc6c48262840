"""A chat's body as a job and its writer."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.grammar.guide import Guide
from weft.parsing import AnswerParser
from weft.server.errors import ApiError, api_error
from weft.server.protocol.chat import ChatBody
from weft.server.reading.conversation import prompt_of
from weft.server.reading.guides import GuideSources, guide_field, guide_of
from weft.server.reading.jobs import Asked, Job, prepared_job
from weft.server.reading.thinking import Thinking, guide_after, reasoning_parser, thinking_of
from weft.server.reading.tools import ToolChoice
from weft.server.served import ServedModel
from weft.server.state import ServerState, new_id
from weft.server.tenants import Tenant
from weft.server.writing.chat import ChatWriter


def chat_request(
    state: ServerState, tenant: Tenant, body: ChatBody, kind: str = "chatcmpl-"
) -> tuple[Job, ChatWriter]:
    """Read a chat's body; the answer's number begins with `kind`. Raises `ApiError`."""
    body.check_together()
    state.check_priority(body.priority)
    served = state.model(body.model)
    try:
        return _request(served, GuideSources(served.handles, _programs(state, tenant)), tenant, body, kind)
    except WeftError as error:
        raise api_error(error, type(body).model_fields, guide=guide_field(body)) from error


def _request(
    served: ServedModel, sources: GuideSources, tenant: Tenant, body: ChatBody, kind: str
) -> tuple[Job, ChatWriter]:
    choice = ToolChoice.of(body)
    prompt = prompt_of(served.text, body.messages, body)
    if choice.told:
        served.warn_of_tools()
    thinking = thinking_of(served.family.thinking, prompt)
    guide, parsers = _guide(served, sources, body, choice, thinking)
    asked = Asked(
        tenant.number,
        tenant.salted(body.cache_salt),
        guide,
        body.most_tokens,
        body.num_logprobs,
        given=_predicted(served, body),
    )
    tokenizer = served.text.tokenizer_for("a conversation")
    served.text.check_text(prompt)
    tokens = list(tokenizer.encode(prompt, add_special_tokens=False))
    job = prepared_job(served, body, [tokens], asked, new_id(kind, body.request_id))
    return job, ChatWriter(job, body, [parsers() for _ in range(job.num_each)])


def _guide(
    served: ServedModel, sources: GuideSources, body: ChatBody, choice: ToolChoice, thinking: Thinking
) -> tuple[Guide | None, Any]:
    """The guide, and what makes a parser for each choice."""
    markers, own = served.family.thinking, guide_of(body, sources)
    parallel = body.parallel_tool_calls is not False
    called = choice.guide(served.family.tool_style, thinking, parallel)
    if called is None:
        guide = guide_after(own, thinking, markers, body.thinking_token_budget)
        return guide, lambda: reasoning_parser(thinking, markers, is_guided=guide is not None)
    if own is not None:
        raise ApiError(
            "an answer has one guide: leave out the tools, or what else it is to look like; with tool_choice none, "
            "tools are told of and not called",
            param="tools",
        )
    if body.thinking_token_budget is not None:
        raise ApiError("thinking_token_budget does not go with tools", param="thinking_token_budget")
    return called, lambda: AnswerParser.of_tools(called, choice.callable)


def _predicted(served: ServedModel, body: ChatBody) -> str:
    """The text that is expected, which is drafted."""
    given = body.prediction
    if given is None:
        return ""
    if "given" not in served.client.built.speculation.drafters:
        raise ApiError(
            "this model is served without drafts of what is predicted; leave prediction out",
            param="prediction",
            code="unsupported_parameter",
        )
    content = given.get("content") if given.get("type") == "content" else None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise ApiError('prediction must be {"type": "content", "content": a text}', param="prediction")
    return content


def _programs(state: ServerState, tenant: Tenant) -> Any:
    return lambda name, argument: state.programs.guide(tenant.name, name, argument)
