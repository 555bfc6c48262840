"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weft.server.protocol.chat import ChatBody
from weft.server.protocol.completions import CompletionBody
from weft.server.responding import AnswerResponse
from weft.server.routes.bodies import beside, json_body, state_of, tenant_of
from weft.server.routes.chat import chat_request
from weft.server.routes.completions import completion_request


async def chat(request: Request) -> Response:
    """Answer a conversation."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    is_heavy = isinstance(data, dict) and (bool(data.get("tools")) or data.get("n") not in (None, 1))
    job, writer = await beside(
        state, size, lambda: chat_request(state, tenant, ChatBody.read(data)), is_heavy=is_heavy
    )
    return AnswerResponse(job, writer, tenant, state.services)


async def completion(request: Request) -> Response:
    """Go on with texts."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    is_heavy = isinstance(data, dict) and (
        isinstance(data.get("prompt"), list) or data.get("n") not in (None, 1)
    )
    job, writer = await beside(
        state, size, lambda: completion_request(state, tenant, CompletionBody.read(data)), is_heavy=is_heavy
    )
    return AnswerResponse(job, writer, tenant, state.services)


# Starlette's own: what FastAPI adds for parameters, which these have none of, takes as long as the rest.
ROUTES = [
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completion, methods=["POST"]),
]
