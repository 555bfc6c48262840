"""Runs a server: builds its models, listens, and ends in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Mapping
from types import FrameType

import uvicorn

from weft.errors import ExecutorError, InputError
from weft.server.app import create_app
from weft.server.origins import is_loopback
from weft.server.served import ServedModel
from weft.server.settings import ServerConfig
from weft.server.state import ServerState

_log = logging.getLogger("weft.server")

POLL_S, TICKS = 0.05, 10
SWITCH_S = 0.001
"""After so long the event loop gives Python's lock to the engine's thread, which lets go of it in each of its many
operations: by default it would wait five times as long for each."""
FAREWELL_S = 1.0
"""So long those who are cancelled at the end are told so."""
YOUNG = 10_000
"""So many new objects are looked through at a time for what only a cycle holds; by default Python looks 14 times as
often, and a body has ten thousands."""


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which on SIGTERM or SIGINT first answers what is under way: nothing new is taken, and /ready
    says so. A second signal ends it at once, and `has_cut` tells whether requests were left then. So does an
    engine that has failed, which `failure` then tells: whoever watches the process starts another."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self._draining: asyncio.Task[None] | None = None
        self.failure: ExecutorError | None = None
        self.has_cut, self._is_told_twice = False, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._state.is_draining or self.should_exit:
            if self._is_told_twice:
                self.force_exit = self.should_exit = True
            self._is_told_twice = True
            return
        self._state.is_draining = True
        _log.info(
            "told to end by %s: %d requests are under way", signal.Signals(sig).name, self._num_requests
        )
        asyncio.get_running_loop().call_soon_threadsafe(self._begin)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end, asked ten times a second."""
        if counter % TICKS == 0:
            try:
                for model in self._state.models.values():
                    model.client.check()
            except ExecutorError as error:
                self.failure = error
                return True
        return await super().on_tick(counter)

    @property
    def _num_requests(self) -> int:
        return self._state.tenants.num_inside

    def _begin(self) -> None:
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        now = self._state.connections.now
        limit = now() + self._state.config.drain_s
        while self._num_requests and now() < limit and not self._is_told_twice:
            await asyncio.sleep(POLL_S)
        if self._num_requests:
            self.has_cut = self._is_told_twice
            why = "are cut by a second signal" if self.has_cut else "did not end in time and are cancelled"
            _log.warning("%d requests %s", self._num_requests, why)
            self._state.services.end()
            limit = now() + FAREWELL_S
            while self._state.services.answering and now() < limit:
                await asyncio.sleep(POLL_S)
        self.should_exit = True


def check_address(config: ServerConfig) -> None:
    """Raise `InputError` where nobody can listen at a configuration's address: models take long to load."""
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(
            f"can't listen at {config.host}, port {config.port}: {why}; give another --host or --port (0: any that is "
            "free)"
        ) from None


def uvicorn_config(state: ServerState, port: int | None = None) -> uvicorn.Config:
    """How uvicorn runs a server; at another port than the configuration's where one is given."""
    config = state.config
    return uvicorn.Config(
        create_app(state),
        host=config.host,
        port=config.port if port is None else port,
        http=state.connections.protocol(),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
    )


def serve(
    config: ServerConfig, models: Mapping[str, ServedModel], programs: Mapping[str, bytes] | None = None
) -> bool:
    """Serve until a signal ends it; False where a second one cut requests. Raises `ExecutorError` where an engine
    failed. `programs` are everybody's, by name. The models are closed at the end, and the process is set up for a
    server: its threads take turns more often, and what has been made so far is not looked through for garbage."""
    state = ServerState(config, models)
    sys.setswitchinterval(SWITCH_S)
    try:
        if not config.api_keys and not is_loopback(config.host):
            _log.warning("anybody who reaches %s may ask: there is no API key", config.host)
        for name, module in (programs or {}).items():
            state.programs.add(name, module)
        server = DrainingServer(uvicorn_config(state), state)
        keep_heap()
        server.run()
    finally:
        state.close()
    if server.failure is not None:
        raise server.failure
    return not server.has_cut


def keep_heap() -> None:
    """Leave what there is, which lives as long as the process, out of Python's search for cycles: to look through a
    model's objects stops all threads for some tenths of a second, and a large body sets it off."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
