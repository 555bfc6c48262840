"""Runs the server: listens, drains on a signal, and closes the engines at the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Mapping
from types import FrameType

import uvicorn

from weft.errors import ExecutorError, InputError
from weft.server.app import create_app
from weft.server.guard import is_loopback
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig
from weft.server.state import ServerState

_log = logging.getLogger("weft.server")

POLL_S, TICKS = 0.05, 10
"""The poll interval in seconds while the server drains. Every `TICKS`-th call of `on_tick` checks the engines."""
SWITCH_S = 0.001
"""The GIL switch interval in seconds. After this time the event loop must release the GIL if another thread wants it.
The engine's thread releases the GIL in every operation. With Python's default it would wait five times as long to get
it back."""
REPEAT_S = 0.5
"""A signal within this many seconds of the last one is the same one."""
FAREWELL_S = 1.0
"""Seconds that shutdown waits for cancelled requests to send their final error."""
YOUNG = 10_000
"""The threshold of the youngest garbage-collector generation, in objects. Python's default is 700 or 2,000, but parsing
one body may create tens of thousands of objects."""


ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
"""The hosts that stand for all addresses of the machine, and the address to reach each from the machine itself."""


def base_url(host: str, port: int) -> str:
    """Return the URL at which this machine reaches a server that listens at `host` and `port`."""
    name = ANY_ADDRESS.get(host) or (f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


class DrainingServer(uvicorn.Server):
    """uvicorn's server with a graceful shutdown.

    On SIGTERM or SIGINT it refuses new requests, fails /ready, and finishes the requests in flight. It cancels those
    that are left after `drain_s` seconds. A second signal cancels them immediately; `has_cut` tells whether there were
    any.

    A failed engine also ends the server, with the error in `failure`, so that a supervisor can restart the process.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self._draining: asyncio.Task[None] | None = None
        self.failure: ExecutorError | None = None
        self.has_cut, self._has_second_signal, self._signalled_at = False, False, -REPEAT_S

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and log the addresses of the API and of the page."""
        await super().startup(sockets=sockets)
        if not self.started:
            return
        config = self._state.config
        listening = [socket for server in self.servers for socket in server.sockets]
        base = base_url(config.host, listening[0].getsockname()[1])
        everywhere = (
            "" if config.host not in ANY_ADDRESS else f", on all addresses of this machine ({config.host})"
        )
        if config.has_page:
            _log.info("page at %s", base)
        _log.info("ready: OpenAI's API at %s/v1%s", base, everywhere)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start draining on the first signal, stop waiting on the second, and exit on the third."""
        # A parent such as `timeout` forwards a signal that the whole process group has got already.
        is_repeated = time.monotonic() - self._signalled_at < REPEAT_S
        self._signalled_at = time.monotonic()
        if is_repeated:
            return
        if self._state.is_draining or self.should_exit:
            if self._has_second_signal:
                self.force_exit = self.should_exit = True
            self._has_second_signal = True
            return
        self._state.is_draining = True
        _log.info("draining after %s: %d requests in flight", signal.Signals(sig).name, self._num_requests)
        # A signal handler must use the thread-safe call: a plain one does not wake a loop that is waiting for I/O.
        asyncio.get_running_loop().call_soon_threadsafe(self._begin)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to shut down. uvicorn calls this ten times a second; the engines are checked once a
        second."""
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
        while self._num_requests and now() < limit and not self._has_second_signal:
            await asyncio.sleep(POLL_S)
        if self._num_requests:
            self.has_cut = self._has_second_signal
            fate = "are cut by a second signal" if self.has_cut else "did not end in time and are cancelled"
            _log.warning("%d requests %s", self._num_requests, fate)
            self._state.end_answers()
            limit = now() + FAREWELL_S
            while self._state.answering and now() < limit:
                await asyncio.sleep(POLL_S)
        _log.info("drained")
        self.should_exit = True


def check_address(config: ServerConfig) -> None:
    """Raise `InputError` if the server can't listen at its address. Call this before loading models, because that is
    slow."""
    try:
        addresses = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"can't listen at {config.host}, port {config.port}: {reason}; give another --host or --port (0: any that "
            "is free)"
        ) from None


def uvicorn_config(state: ServerState, port: int | None = None) -> uvicorn.Config:
    """Return uvicorn's settings. `port` overrides the port in the configuration."""
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
    """Serve until a signal arrives, then close the models. Returns False if a second signal cut off requests. Raises
    `ExecutorError` if an engine failed.

    `programs` are WebAssembly modules by name, which all tenants may use. Serving changes two settings of the whole
    process: the thread switch interval and the garbage collector's thresholds (`keep_heap`).
    """
    state = ServerState(config, models)
    sys.setswitchinterval(SWITCH_S)
    try:
        if not config.api_keys and not is_loopback(config.host):
            _log.warning("anybody who reaches %s may ask: there is no API key", config.host)
        for name, module in (programs or {}).items():
            state.programs.share(name, module)
        server = DrainingServer(uvicorn_config(state), state)
        keep_heap()
        server.run()
    finally:
        state.close()
    if server.failure is not None:
        raise server.failure
    return not server.has_cut


def keep_heap() -> None:
    """Freeze the existing heap, so that the garbage collector no longer scans it, and set the threshold `YOUNG`. The
    models' objects live as long as the process. A full collection over them stops all threads for some tenths of a
    second, and a large body would trigger one."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
