"""Bodies as data, and work that would hold the event loop done beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from weft.server.errors import ApiError
from weft.server.protocol import json_data
from weft.server.protocol.json_data import read_json
from weft.server.state import ServerState
from weft.server.tenants import Tenant

T = TypeVar("T")

SMALL = 4 << 10
"""Bytes of a body that is read at once."""


async def raw_body(request: Request) -> bytes:
    """A body, which may not take for ever to come."""
    state = state_of(request)
    seconds = state.config.max_body_s
    try:
        async with state.connections.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise ApiError(f"the body did not come within {seconds:g} s", 408, code="body_too_slow") from None


async def json_body(request: Request, *, is_of_model: bool = True) -> tuple[Any, int]:
    """The JSON of a body, and its bytes. `is_of_model` where it may name a model, whose refusals are counted."""
    raw = await raw_body(request)
    is_large, most = len(raw) > json_data.SMALL, state_of(request).config.max_body_entries
    data = await beside(request, len(raw), lambda: read_json(raw, most)) if is_large else read_json(raw, most)
    if is_of_model and isinstance(data, dict):
        models, name = state_of(request).models, data.get("model")
        known = name is None or (isinstance(name, str) and name in models)
        request.scope["weft.model"] = (name or next(iter(models))) if known else ""
    return data, len(raw)


async def beside(request: Request, size: int, work: Callable[[], T], *, is_heavy: bool = False) -> T:
    """What `work` gives; of a large body it is done on another thread, where tenants take turns."""
    if size <= SMALL and not is_heavy:
        return work()
    return await state_of(request).workers.read(tenant_of(request).number, work)


def state_of(request: Request) -> ServerState:
    """The server's parts."""
    state: ServerState = request.app.state.weft
    return state


def tenant_of(request: Request) -> Tenant:
    """Who asks."""
    tenant: Tenant = request.scope["weft.tenant"]
    return tenant
