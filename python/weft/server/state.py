"""The shared state of a running server, and the helpers that every route uses to get its state, tenant and body.

`off_loop` moves work that would block the event loop to a reading thread. Tenants take turns on these threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from weft.server.connections import ConnectionLimits, Connections
from weft.server.errors import ApiError, quoted
from weft.server.kept import KeptResponses, Programs
from weft.server.metrics import BAD_HEAD, Metrics
from weft.server.models import ServedModel
from weft.server.protocol import body as body_json
from weft.server.protocol.body import read_json
from weft.server.settings import ServerConfig
from weft.server.tenants import Tenant, Tenants
from weft.server.timeline import Occupancy
from weft.server.workers import Workers

T = TypeVar("T")

MAX_LOOP_READ_BYTES = 4 << 10
"""Bodies up to this many bytes are processed on the event loop."""
UNHURRIED_REQUESTS, MAX_STRETCH = 16, 5
"""Above `UNHURRIED_REQUESTS` requests in flight, the pauses between a stream's events grow with the number of requests,
up to a factor of `MAX_STRETCH`. Otherwise a busy server would spend its CPU time on sockets instead of the engine."""


class ServerState:
    """The shared state of a server. Once `is_draining` is set, new requests are refused. Once `has_ended` is set,
    answers in flight are cancelled."""

    def __init__(self, config: ServerConfig, models: Mapping[str, ServedModel]) -> None:
        self.config, self.models = config, models
        self.is_draining, self.has_ended = False, False
        self.answering: set[asyncio.Future[None]] = set()
        self.tenants = Tenants(config)
        self.metrics = Metrics(models)
        self.programs = Programs(config.programs)
        self.responses = KeptResponses(config.max_kept_responses, config.max_kept_bytes)
        self.workers = Workers()
        self.occupancies: dict[str, Occupancy] = {}
        self.connections = Connections(
            ConnectionLimits(
                config.max_head_bytes,
                config.max_head_s,
                config.slow_reader_s,
                max_pipelined_bytes=config.max_head_bytes + config.max_body_bytes,
                max_connections=config.max_connections,
            ),
            lambda: self.metrics.refuse("", BAD_HEAD),
            self.tenants.release,
        )
        for name, model in models.items():
            model.client.observe(self.metrics.of(name).step)
            self.occupancies[name] = occupancy = Occupancy(model.client.engine)
            model.client.observe(occupancy.note)

    def model(self, name: str | None) -> ServedModel:
        """Return the model called `name`, or the first model if `name` is None. Raises `ApiError` for an unknown
        name."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ApiError(
                f"there is no model {quoted(name)}; there is {', '.join(self.models)}",
                404,
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    def check_priority(self, priority: int) -> None:
        """Raise `ApiError` for a nonzero priority if the server does not allow clients to set one."""
        allowed = self.config.allow_priority
        if priority and not (not self.tenants.have_keys if allowed is None else allowed):
            raise ApiError(
                "this server lets nobody go before others (allow_priority); leave priority out",
                400,
                param="priority",
            )

    def pause_s(self) -> float:
        """Return the time in seconds that a stream collects tokens before it sends an event."""
        stretch = min(max(self.tenants.num_requests / UNHURRIED_REQUESTS, 1.0), MAX_STRETCH)
        return self.config.stream_interval_ms / 1000 * stretch

    def end_answers(self) -> None:
        """Cancel all answers in flight. Their clients get an error."""
        self.has_ended = True
        for answer in self.answering:
            answer.cancel()

    def close(self) -> None:
        """Stop the worker threads and all engines."""
        self.workers.close()
        for model in self.models.values():
            model.close()


def state_of(request: Request) -> ServerState:
    """Return the server's state."""
    state: ServerState = request.app.state.weft
    return state


def tenant_of(request: Request) -> Tenant:
    """Return the tenant that sent the request."""
    tenant: Tenant = request.scope["weft.tenant"]
    return tenant


async def raw_body(request: Request) -> bytes:
    """Read the body's bytes. Raises `ApiError` if they do not arrive within `max_body_s`."""
    state = state_of(request)
    seconds = state.config.max_body_s
    try:
        async with state.connections.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise ApiError(f"the body did not come within {seconds:g} s", 408, code="body_too_slow") from None


async def json_body(request: Request, *, is_of_model: bool = True) -> tuple[Any, int]:
    """Read and parse a JSON body. Returns the data and the size in bytes. With `is_of_model` the body may name a
    model, and the metrics attribute a refusal to that model."""
    raw = await raw_body(request)
    max_entries = state_of(request).config.max_body_entries
    if len(raw) > body_json.MAX_LOOP_PARSE_BYTES:
        data = await off_loop(request, len(raw), lambda: read_json(raw, max_entries))
    else:
        data = read_json(raw, max_entries)
    if is_of_model and isinstance(data, dict):
        models, name = state_of(request).models, data.get("model")
        is_known = name is None or (isinstance(name, str) and name in models)
        request.scope["weft.model"] = (name or next(iter(models))) if is_known else ""
    return data, len(raw)


async def off_loop(request: Request, size: int, work: Callable[[], T], *, is_heavy: bool = False) -> T:
    """Run `work` and return its result. For a large body, or with `is_heavy`, it runs on a reading thread."""
    if size <= MAX_LOOP_READ_BYTES and not is_heavy:
        return work()
    return await state_of(request).workers.read(tenant_of(request).number, work)
