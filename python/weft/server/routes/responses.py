"""The routes of /v1/responses, OpenAI's newer API. The server stores responses, so that later requests can continue
the conversation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from weft.server.errors import ApiError
from weft.server.kept import Kept
from weft.server.protocol.responses import ResponsesBody
from weft.server.reading.responses import chat_body, input_items, page, renamed
from weft.server.responding import AnswerResponse
from weft.server.routes.generation import job_of_body
from weft.server.state import ServerState, json_body, off_loop, state_of, tenant_of
from weft.server.tenants import Tenant
from weft.server.writing.responses import ResponsesWriter

router = APIRouter()


@router.post("/v1/responses")
async def respond(request: Request) -> Response:
    """Create a response, and store it unless `store` is false."""
    data, size = await json_body(request)
    state, tenant = state_of(request), tenant_of(request)
    return await off_loop(request, size, lambda: _response(state, tenant, data, size), is_heavy=True)


@router.get("/v1/responses/{response_id}")
async def response(request: Request, response_id: str) -> dict[str, Any]:
    """Return a stored response."""
    return (await _kept(request, response_id)).response


@router.get("/v1/responses/{response_id}/input_items")
async def listed_items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """List the conversation items before a response, latest first unless `order` is "asc"."""
    kept = await _kept(request, response_id)
    return page(kept.items, limit, order, after)


@router.delete("/v1/responses/{response_id}")
async def delete(request: Request, response_id: str) -> dict[str, Any]:
    """Delete a stored response."""
    state_of(request).responses.delete(tenant_of(request).name, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


async def _kept(request: Request, response_id: str) -> Kept:
    responses, tenant = state_of(request).responses, tenant_of(request).name
    return await off_loop(request, 0, lambda: responses.get(tenant, response_id), is_heavy=True)


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
        job = job_of_body(state, tenant, chat_body(body, items), "resp_")
    except ApiError as error:
        raise renamed(error) from error.__cause__

    job.ignored = body.ignored

    def keep(response: dict[str, Any]) -> None:
        state.responses.keep(tenant.name, response, items)

    return AnswerResponse(job, ResponsesWriter(job, body, keep), tenant, state)
