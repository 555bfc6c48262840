"""/v1/responses: OpenAI's newer API, with conversations that the server keeps for a while."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from weft.server.errors import ApiError
from weft.server.kept import Kept
from weft.server.reading.responses import input_items, page
from weft.server.protocol.responses import ResponsesBody, in_own_names
from weft.server.responding import AnswerResponse
from weft.server.routes.bodies import beside, json_body, state_of, tenant_of
from weft.server.reading.chat import chat_request
from weft.server.state import ServerState
from weft.server.tenants import Tenant
from weft.server.writing.responses import ResponsesWriter

router = APIRouter()


@router.post("/v1/responses")
async def respond(request: Request) -> Response:
    """Answer, and keep the answer unless `store` is false."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    return await beside(request, size, lambda: _response(state, tenant, data, size), is_heavy=True)


@router.get("/v1/responses/{number}")
async def response(request: Request, number: str) -> dict[str, Any]:
    """An answer that was kept."""
    return (await _kept(request, number)).response


@router.get("/v1/responses/{number}/input_items")
async def listed_items(
    request: Request,
    number: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """What it answered: the items of the conversation before it, the latest first unless `order` is "asc"."""
    kept = await _kept(request, number)
    return page(kept.items, limit, order, after)


@router.delete("/v1/responses/{number}")
async def delete(request: Request, number: str) -> dict[str, Any]:
    """Let go of one."""
    state_of(request).responses.delete(tenant_of(request).name, number)
    return {"id": number, "object": "response", "deleted": True}


async def _kept(request: Request, number: str) -> Kept:
    responses, tenant = state_of(request).responses, tenant_of(request).name
    return await beside(request, 0, lambda: responses.get(tenant, number), is_heavy=True)


def _response(state: ServerState, tenant: Tenant, data: Any, size: int) -> Response:
    body = ResponsesBody.read(data)
    before: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        kept = state.responses.get(tenant.name, body.previous_response_id, "previous_response_id")
        if kept.num_bytes + size > state.config.max_body_bytes:
            raise ApiError(
                f"the conversation has more than the {state.config.max_body_bytes} bytes that a body may have; begin "
                "another",
                413,
                param="previous_response_id",
                code="conversation_too_large",
            )
        before = kept.conversation
    items = [*before, *input_items(body.input, before)]
    try:
        job, writer = chat_request(state, tenant, body.chat(items), "resp_")
    except ApiError as error:
        raise in_own_names(error) from error.__cause__
    job.in_own_names = in_own_names

    def keep(told: dict[str, Any]) -> None:
        state.responses.keep(tenant.name, told, items)

    own = ResponsesWriter(job, body, writer.parser, keep)
    return AnswerResponse(job, own, tenant, state.services)
