"""Routes for operators: models, health, version, metrics, and a timeline of the CPU runtime."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from weft.config import package_model_path
from weft.errors import ExecutorError
from weft.server.errors import ApiError, quoted
from weft.server.models import ServedModel
from weft.server.state import state_of, tenant_of
from weft.server.timeline import timeline as record_timeline
from weft.version import __version__

router = APIRouter()
_log = logging.getLogger("weft.server")


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models, in the forms of OpenAI and of Anthropic at once."""
    listed = [_model(served) for served in state_of(request).models.values()]
    page = {"has_more": False, "first_id": listed[0]["id"], "last_id": listed[-1]["id"]}
    return {"object": "list", "data": listed, **page}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe one model."""
    served = state_of(request).models.get(name)
    if served is None:
        raise ApiError(f"there is no model {quoted(name)}", 404, param="model", code="model_not_found")
    return _model(served)


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """Return 200 if all engines run, or 503 if one has failed."""
    for served in state_of(request).models.values():
        try:
            served.client.check()
        except ExecutorError as error:
            # This route needs no API key, so the cause appears only in the log.
            _log.error("the engine of %s has failed: %s", served.name, error)
            return JSONResponse({"status": "failed", "model": served.name}, 503)
    return JSONResponse({"status": "ok"})


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> Response:
    """Return 200 if the server accepts requests, or 503 if it is draining or an engine has failed."""
    if state_of(request).is_draining:
        return JSONResponse({"status": "draining"}, 503)
    return await health(request)


@router.get("/version")
async def version() -> dict[str, str]:
    """Return the version of weft."""
    return {"version": __version__}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus's text format."""
    return Response(generate_latest(state_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _model(served: ServedModel) -> dict[str, Any]:
    speculation = served.client.built.speculation
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "weft",
        "type": "model",
        "display_name": served.name,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.max_model_len,
        "max_tokens": served.max_model_len,
        "max_model_len": served.max_model_len,
        "vocab_size": served.text.vocab_size,
        "speculation": speculation.name,
        "num_draft_tokens": speculation.max_draft_tokens,
        "tool_style": served.family.tool_style,
        "thinks": served.family.thinking is not None,
        "guides": sorted(served.handles),
        "is_embedded": served.client.built.path == package_model_path(),
    }


# -- the timeline

MAX_MS = 500
MAX_WAIT_MS = 2000

_recording = asyncio.Lock()


@router.get("/v1/timeline")
async def timeline(
    request: Request, ms: int = 50, wait_ms: int = 0, model: str | None = None
) -> dict[str, Any]:
    """Record the CPU runtime's streams for `ms` milliseconds, and return the tenant's part (`timeline.py`).

    The recording also covers up to `wait_ms` before, in which it waits for iterations of the tenant. Only one recording
    runs at a time."""
    state = state_of(request)
    served = state.model(model)
    if not state.config.has_page:
        raise ApiError("timelines are for the page, which this server does not have", 404)
    if served.client.built.runtime.device.type != "cpu":
        raise ApiError("timelines are of the CPU runtime; use Nsight Systems on a GPU", code="no_timeline")
    if not 1 <= ms <= MAX_MS:
        raise ApiError(f"ms is {ms}; it must be 1 to {MAX_MS}", param="ms")
    if not 0 <= wait_ms <= MAX_WAIT_MS:
        raise ApiError(f"wait_ms is {wait_ms}; it must be 0 to {MAX_WAIT_MS}", param="wait_ms")
    if _recording.locked():
        raise ApiError("another recording is under way; try again", 429, retry_after_s=1)
    async with _recording:
        engines = [(state.models[name], occupancy) for name, occupancy in state.occupancies.items()]
        number = tenant_of(request).number
        return await record_timeline(engines, served, number, ms / 1000, wait_ms / 1000)
