"""What all routes share: the models, the tenants, their programs and answers, and whether the server drains."""

from __future__ import annotations

import time
from collections.abc import Mapping

from weft.server.body_limits import HeldBodies
from weft.server.connections import ConnectionLimits, Connections
from weft.server.errors import ApiError, quoted
from weft.server.ids import new_hex
from weft.server.kept import KeptResponses
from weft.server.metrics import BAD_HEAD, Metrics
from weft.server.programs import Programs
from weft.server.responding import Services
from weft.server.served import ServedModel
from weft.server.settings import ServerConfig
from weft.server.tenants import Tenants
from weft.server.workers import Workers


class ServerState:
    """A server's parts. `is_draining` from when it was told to end: nothing new is taken."""

    def __init__(self, config: ServerConfig, models: Mapping[str, ServedModel]) -> None:
        self.config, self.models = config, models
        self.is_draining = False
        self.tenants = Tenants(config)
        self.bodies = HeldBodies(config.max_bodies_bytes)
        self.metrics = Metrics()
        self.programs = Programs(config.programs)
        self.responses = KeptResponses(config.max_kept_responses, config.max_kept_bytes)
        self.workers = Workers()
        self.services = Services(self.tenants, self.metrics, self.workers, config.stream_interval_ms / 1000)
        self.connections = Connections(
            ConnectionLimits(
                config.max_head_bytes,
                config.max_head_s,
                config.slow_reader_s,
                max_ahead_bytes=config.max_head_bytes + config.max_body_bytes,
                max_connections=config.max_connections,
            ),
            lambda: self.metrics.refuse("", BAD_HEAD),
            self.tenants.let_go,
        )
        for name, model in models.items():
            model.client.observe(self.metrics.of(name).step)

    def model(self, name: str | None) -> ServedModel:
        """The model of a request; the first where it names none. Raises `ApiError`."""
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
        """Raise `ApiError` for a priority where tenants may not have one."""
        allowed = self.config.allow_priority
        if priority and not (not self.tenants.have_keys if allowed is None else allowed):
            raise ApiError(
                "this server lets nobody go before others (allow_priority); leave priority out",
                400,
                param="priority",
            )

    def close(self) -> None:
        """End all engines, and what works beside them."""
        self.workers.close()
        for model in self.models.values():
            model.close()


def new_id(kind: str, given: str | None = None) -> tuple[str, int]:
    """The id of an answer, which begins with `kind` and has the id that its request was given, and the time."""
    return f"{kind}{given or new_hex()}", int(time.time())
