"""Runs a real server in the test's process: uvicorn on a thread, with engines of weft-tiny."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from weft import EngineConfig, Speculation
from weft.server.models import ServedModel, ServedModelConfig, build
from weft.server.run import uvicorn_config
from weft.server.settings import ServerConfig
from weft.server.state import ServerState


@dataclass(frozen=True)
class Running:
    """A listening server."""

    state: ServerState
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(models: Mapping[str, ServedModel], config: ServerConfig | None = None) -> Iterator[Running]:
    """Serve models on a free port. The models stay open afterwards."""
    state = ServerState(config or ServerConfig(), models)
    server = uvicorn.Server(uvicorn_config(state, port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    limit = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < limit, "the server does not start"
        time.sleep(0.01)
    (listening,) = server.servers
    try:
        yield Running(state, listening.sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
        state.workers.close()
        assert not thread.is_alive(), "the server does not end"


@contextmanager
def running_thinker() -> Iterator[Running]:
    """A server of weft-tiny as `tiny`, configured as a model that thinks. It writes its markers only where it must."""
    served = build(
        ServedModelConfig(
            name="tiny",
            thinking=("<think>", "</think>"),
            speculation=Speculation.eagle3(num_draft_tokens=3),
            engine=EngineConfig(max_batch=4),
        )
    )
    try:
        with running({"tiny": served}, ServerConfig(stream_interval_ms=0)) as server:
            yield server
    finally:
        served.close()
