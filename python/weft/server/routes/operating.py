"""What operators ask: models, health, version, metrics."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, Response

from weft.config import package_model_path
from weft.errors import ExecutorError
from weft.server.errors import ApiError, quoted
from weft.server.routes.bodies import state_of
from weft.server.served import ServedModel

router = APIRouter()
_log = logging.getLogger("weft.server")


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """What can be asked."""
    return {"object": "list", "data": [_model(one) for one in state_of(request).models.values()]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    found = state_of(request).models.get(name)
    if found is None:
        raise ApiError(f"there is no model {quoted(name)}", 404, param="model", code="model_not_found")
    return _model(found)


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> Response:
    """Whether the engines run: 200, or 503 where one has failed."""
    for served in state_of(request).models.values():
        try:
            served.client.check()
        except ExecutorError as error:
            # Whoever asks has shown no key: what is inside is for the log.
            _log.error("the engine of %s has failed: %s", served.name, error)
            return JSONResponse({"status": "failed", "model": served.name}, 503)
    return JSONResponse({"status": "ok"})


@router.api_route("/ready", methods=["GET", "HEAD"])
async def ready(request: Request) -> Response:
    """Whether new requests are taken: 503 where an engine has failed, or the server is about to end."""
    if state_of(request).is_draining:
        return JSONResponse({"status": "draining"}, 503)
    return await health(request)


@router.get("/version")
async def version() -> dict[str, str]:
    """weft's."""
    return {"version": importlib.metadata.version("weft")}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus's text."""
    return Response(generate_latest(state_of(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _model(served: ServedModel) -> dict[str, Any]:
    speculation = served.client.built.speculation
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "weft",
        "max_model_len": served.max_model_len,
        "vocab_size": served.text.vocab_size,
        "speculation": speculation.name,
        "num_draft_tokens": speculation.max_draft_tokens,
        "tool_style": served.family.tool_style,
        "thinks": served.family.thinking is not None,
        "guides": sorted(served.handles),
        "is_embedded": served.client.built.path == package_model_path(),
    }
