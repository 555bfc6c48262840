"""Bodies as data, and work that would hold the event loop done beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request

from weft.server.errors import ApiError
from weft.server.state import ServerState
from weft.server.tenants import Tenant

T = TypeVar("T")

SURROGATE = b"\\ud"
SMALL, SMALL_JSON = 4 << 10, 64 << 10
"""Bytes of a body that is read at once, and of one that is parsed at once. Python's parser holds the interpreter: a
thread that parses 3 MB of a million objects keeps the event loop from running for 75 ms, as the loop itself would. But
there the loop has its turn between this, the look for surrogates, and letting go of it all."""


async def raw_body(request: Request) -> bytes:
    """A body, which may not take for ever to come."""
    seconds = state_of(request).config.max_body_s
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise ApiError(f"the body did not come within {seconds:g} s", 408, code="body_too_slow") from None


async def json_body(request: Request, *, is_of_model: bool = True) -> tuple[Any, int]:
    """The JSON of a body, and its bytes. `is_of_model` where it may name a model, whose refusals are counted."""
    raw = await raw_body(request)
    is_large = len(raw) > SMALL_JSON
    data = await beside(request, len(raw), lambda: _data(raw)) if is_large else _data(raw)
    if is_of_model and isinstance(data, dict):
        models, name = state_of(request).models, data.get("model")
        known = name is None or (isinstance(name, str) and name in models)
        request.scope["weft.model"] = (name or next(iter(models))) if known else ""
    return data, len(raw)


def _data(raw: bytes) -> Any:
    if not raw:
        raise ApiError("the body is empty; send a JSON object")
    try:
        data = json.loads(raw)
        if SURROGATE in raw.lower():
            json.dumps(data, ensure_ascii=False).encode()
        return data
    except RecursionError:
        raise ApiError("the body is not JSON that can be read: its brackets nest too deep") from None
    except UnicodeEncodeError:
        raise ApiError("the body has half a character (a surrogate), which UTF-8 can't hold") from None
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from None


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
