"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weft.server.protocol.chat import ChatBody
from weft.server.protocol.completions import CompletionBody
from weft.server.responding import AnswerResponse
from weft.server.routes.bodies import beside, json_body, state_of, tenant_of
from weft.server.reading.chat import chat_request
from weft.server.routes.completions import completion_request


async def chat(request: Request) -> Response:
    """Answer a conversation."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    is_heavy = _is_heavy(data) or bool(data.get("tools"))
    job, writer = await beside(
        request, size, lambda: chat_request(state, tenant, ChatBody.read(data)), is_heavy=is_heavy
    )
    return AnswerResponse(job, writer, tenant, state.services)


async def completion(request: Request) -> Response:
    """Go on with texts."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    is_heavy = _is_heavy(data) or isinstance(data.get("prompt"), list)
    job, writer = await beside(
        request, size, lambda: completion_request(state, tenant, CompletionBody.read(data)), is_heavy=is_heavy
    )
    return AnswerResponse(job, writer, tenant, state.services)


def _is_heavy(data: Any) -> bool:
    """Whether a short body takes long to read: a program may have megabytes, and an order of properties many forms. One
    that is no object is short, and refused."""
    if not isinstance(data, dict):
        return True
    guide = data.get("guide")
    is_long = isinstance(guide, dict) and not guide.keys().isdisjoint(("wasm", "any_order"))
    return is_long or data.get("n") not in (None, 1)


# Starlette's own: what FastAPI adds for parameters, which these have none of, takes as long as the rest.
ROUTES = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completion, methods=["POST"]),
]
