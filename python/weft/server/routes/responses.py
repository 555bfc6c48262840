"""/v1/responses: OpenAI's newer API, with conversations that the server keeps for a while."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from weft.server.protocol.items import input_items, page
from weft.server.protocol.responses import ResponsesBody
from weft.server.responding import AnswerResponse
from weft.server.routes.bodies import beside, json_body, state_of, tenant_of
from weft.server.routes.chat import chat_request
from weft.server.state import ServerState
from weft.server.tenants import Tenant
from weft.server.writing.responses import ResponsesWriter

router = APIRouter()


@router.post("/v1/responses")
async def respond(request: Request) -> Response:
    """Answer, and keep the answer unless `store` is false."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    return await beside(state, size, lambda: _response(state, tenant, data), is_heavy=True)


@router.get("/v1/responses/{number}")
async def response(request: Request, number: str) -> dict[str, Any]:
    """An answer that was kept."""
    return state_of(request).responses.get(tenant_of(request).name, number).response


@router.get("/v1/responses/{number}/input_items")
async def listed_items(
    request: Request,
    number: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """What it answered: the items of the conversation before it, the latest first unless `order` is "asc"."""
    kept = state_of(request).responses.get(tenant_of(request).name, number)
    return page(kept.items, limit, order, after)


@router.delete("/v1/responses/{number}")
async def delete(request: Request, number: str) -> dict[str, Any]:
    """Let go of one."""
    state_of(request).responses.delete(tenant_of(request).name, number)
    return {"id": number, "object": "response", "deleted": True}


def _response(state: ServerState, tenant: Tenant, data: Any) -> Response:
    body = ResponsesBody.read(data)
    before: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        kept = state.responses.get(tenant.name, body.previous_response_id, "previous_response_id")
        before = kept.conversation
    items = [*before, *input_items(body.input, before)]
    job, writer = chat_request(state, tenant, body.chat(items), "resp_")

    def keep(told: dict[str, Any]) -> None:
        state.responses.keep(tenant.name, told, items)

    own = ResponsesWriter(job, body, writer.parser, keep)
    return AnswerResponse(job, own, tenant, state.services)
