"""The routes /v1/chat/completions and /v1/completions. Each converts the body to a job and returns its answer."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weft.errors import WeftError
from weft.server.errors import api_error
from weft.server.protocol.generation import ChatBody, CompletionBody
from weft.server.reading.chat import chat_job
from weft.server.reading.guides import guide_field
from weft.server.reading.jobs import Job, completion_job
from weft.server.responding import AnswerResponse
from weft.server.state import ServerState, json_body, off_loop, state_of, tenant_of
from weft.server.tenants import Tenant
from weft.server.writing.choices import ChatWriter, CompletionWriter


async def chat(request: Request) -> Response:
    """Complete a chat."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)

    def read() -> Response:
        body = ChatBody.read(data)
        job = job_of_body(state, tenant, body)
        return AnswerResponse(job, ChatWriter(job, body), tenant, state)

    is_heavy = _is_heavy(data) or bool(data.get("tools"))
    return await off_loop(request, size, read, is_heavy=is_heavy)


async def completion(request: Request) -> Response:
    """Complete one or more prompts."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)

    def read() -> Response:
        body = CompletionBody.read(data)
        job = job_of_body(state, tenant, body)
        return AnswerResponse(job, CompletionWriter(job, body), tenant, state)

    is_heavy = _is_heavy(data) or isinstance(data.get("prompt"), list)
    return await off_loop(request, size, read, is_heavy=is_heavy)


def job_of_body(
    state: ServerState, tenant: Tenant, body: ChatBody | CompletionBody, prefix: str = "chatcmpl-"
) -> Job:
    """Build the job for a body. For a chat, the answer's id begins with `prefix`. Raises `ApiError`."""
    body.check_together()
    state.check_priority(body.priority)
    served = state.model(body.model)
    program = partial(state.programs.guide, tenant.name)
    try:
        if isinstance(body, ChatBody):
            return chat_job(served, program, tenant, body, prefix)
        return completion_job(served, program, tenant, body)
    except WeftError as error:
        raise api_error(error, type(body).model_fields, guide=guide_field(body)) from error


def _is_heavy(data: Any) -> bool:
    """Return whether even a short body may take long to process. Its guide may name a program of several megabytes,
    or a schema whose properties may come in any order. With `n` there are more sequences to prepare."""
    # `read` refuses any other JSON value. Return True, so that the callers do not call `data.get` on it.
    if not isinstance(data, dict):
        return True
    guide = data.get("guide")
    is_long = isinstance(guide, dict) and not guide.keys().isdisjoint(("wasm", "any_order"))
    return is_long or data.get("n") not in (None, 1)


# Starlette routes, not FastAPI's: resolving parameters would double a route's overhead, and these routes have none.
ROUTES = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completion, methods=["POST"]),
]
