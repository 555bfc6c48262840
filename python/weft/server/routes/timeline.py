"""/v1/timeline: what the streams of the CPU runtime did just now, the grammar's work beside the model's."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from weft.server.errors import ApiError
from weft.server.routes.bodies import state_of
from weft.trace import record, track_names

router = APIRouter()

LONGEST_MS = 500
MOST_SLICES = 5000

_recording = asyncio.Lock()


@router.get("/v1/timeline")
async def timeline(request: Request, ms: int = 50, model: str | None = None) -> dict[str, Any]:
    """What runs in the next `ms` milliseconds. One recording at a time; all models of the process are in it."""
    state = state_of(request)
    served = state.model(model)
    if not state.config.has_page:
        raise ApiError("timelines are for the page, which this server does not have", 404)
    if state.tenants.have_keys and len(state.config.api_keys) > 1:
        raise ApiError("a timeline shows what all tenants do; this server has several", 403)
    if served.client.built.runtime.device.type != "cpu":
        raise ApiError("timelines are of the CPU runtime; use Nsight Systems on a GPU", code="no_timeline")
    if not 1 <= ms <= LONGEST_MS:
        raise ApiError(f"ms is {ms}; it must be 1 to {LONGEST_MS}", param="ms")
    if _recording.locked():
        raise ApiError("another recording is under way; try again", 429, retry_after_s=1)
    async with _recording:
        with record() as slices:
            await asyncio.sleep(ms / 1000)
    shown = sorted(slices, key=lambda one: one.begin_us)[:MOST_SLICES]
    names = track_names(slices)
    return {
        "tracks": [{"stream": stream, "name": name} for stream, name in names.items()],
        "slices": [
            {
                "label": one.label,
                "kind": one.kind,
                "stream": one.stream,
                "begin_us": round(one.begin_us, 1),
                "end_us": round(one.end_us, 1),
            }
            for one in shown
        ],
    }
