"""The routes of /v1/controllers, AICI's API for WebAssembly programs that clients upload."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from weft.errors import WeftError
from weft.server.errors import ApiError, api_error
from weft.server.protocol.body import Body, Few
from weft.server.state import json_body, off_loop, raw_body, state_of, tenant_of

router = APIRouter()

MAGIC = b"\0asm"


class TagsBody(Body):
    """The body of /v1/controllers/tags: a module id, and tags for the module."""

    module_id: str
    tags: Few[str]


@router.post("/v1/controllers")
async def upload(request: Request) -> dict[str, Any]:
    """Store a module. The body is WebAssembly in binary form."""
    module = await raw_body(request)
    if module[:4] != MAGIC:
        raise ApiError("the body is no WebAssembly module in binary form; send the .wasm file as it is")
    state, tenant = state_of(request), tenant_of(request)
    try:
        return await off_loop(
            request, len(module), lambda: state.programs.upload(tenant.name, module), is_heavy=True
        )
    except WeftError as error:
        raise api_error(error) from error


@router.post("/v1/controllers/tags")
async def tag(request: Request) -> dict[str, Any]:
    """Attach tags to a module."""
    data, _ = await json_body(request, is_of_model=False)
    body = TagsBody.read(data)
    return state_of(request).programs.tag(tenant_of(request).name, body.module_id, body.tags)


@router.get("/v1/controllers")
@router.get("/v1/controllers/tags")
async def programs(request: Request) -> dict[str, Any]:
    """List the tenant's modules and tags, and the names of shared programs."""
    return state_of(request).programs.list(tenant_of(request).name)


@router.delete("/v1/controllers/{name}")
async def delete(request: Request, name: str) -> dict[str, Any]:
    """Delete a tag, or a module with all its tags."""
    return state_of(request).programs.delete(tenant_of(request).name, name)
