"""The routes /v1/messages and /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weft.errors import WeftError
from weft.server.errors import MESSAGES_PATH, ApiError, api_error
from weft.server.protocol.messages import CountTokensBody, MessagesBody
from weft.server.reading.chat import functions_of, prompt_of
from weft.server.reading.messages import chat_body, messages_of, renamed, template_fields
from weft.server.responding import AnswerResponse
from weft.server.routes.generation import job_of_body
from weft.server.state import ServerState, json_body, off_loop, state_of, tenant_of
from weft.server.writing.messages import MessagesWriter


async def create(request: Request) -> Response:
    """Create a message."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)

    def read() -> Response:
        body = MessagesBody.read(data)
        try:
            job = job_of_body(state, tenant, chat_body(body), "msg_")
        except ApiError as error:
            raise renamed(error) from error.__cause__
        job.ignored = body.ignored
        return AnswerResponse(job, MessagesWriter(job, body, request.scope["weft.request_id"]), tenant, state)

    return await off_loop(request, size, read, is_heavy=True)


async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation."""
    data, size = await json_body(request)
    state = state_of(request)
    return await off_loop(request, size, lambda: JSONResponse(_counted(state, CountTokensBody.read(data))))


def _counted(state: ServerState, body: CountTokensBody) -> dict[str, Any]:
    text = state.model(body.model).text
    messages = messages_of(body)
    fields = template_fields(body, messages)
    functions_of(fields.tools or ())
    prompt = prompt_of(text, messages, fields)
    try:
        text.check_text(prompt)
    except WeftError as error:
        raise api_error(error, ["messages"]) from error
    tokens = text.tokenizer_for("a conversation").encode_chat(prompt)
    return {"input_tokens": len(tokens)}


ROUTES = [
    Route(MESSAGES_PATH, create, methods=["POST"]),
    Route(f"{MESSAGES_PATH}/count_tokens", count_tokens, methods=["POST"]),
]
