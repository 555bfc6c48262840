"""Checks requests before the application sees them, and before their body is read.

The guard refuses:

- repeated security headers, because a proxy in front might have checked the other one;
- `Expect` headers that the server can't meet;
- requests while more than `max_connections` connections are open, except health checks;
- requests from foreign web pages (`Origins`): any page in a browser can send requests to this machine;
- missing or wrong API keys;
- bodies that are too long (`LimitedBody`): memory is bounded per body, and for all bodies together;
- requests above a tenant's limits (`tenants.py`), and POST requests while the server drains.

`connections.py` handles limits that apply earlier, such as slow or oversized headers. The guard also assigns request
ids, logs each request, and counts refusals.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.server.errors import ApiError, is_messages, server_ended
from weft.server.ids import new_hex
from weft.server.metrics import reason_of
from weft.server.settings import ServerConfig
from weft.server.state import ServerState
from weft.server.tenants import CountedRequest, Tenant, Tenants
from weft.server.traffic_log import log_request

GUARDED = ("/v1", "/tokenize", "/detokenize")
"""Paths that need an API key."""
UPLOADS = "/v1/controllers"
WATCHED = ("/health", "/ready")
"""Health checks. They are answered even above `max_connections`, because a supervisor would restart a server that does
not answer them."""
AUTHORIZATION, API_KEY = b"authorization", b"x-api-key"
"""The headers that may hold an API key: OpenAI's, and Anthropic's."""
SINGLE_HEADERS = frozenset(
    (
        AUTHORIZATION,
        API_KEY,
        b"host",
        b"origin",
        b"content-length",
        b"content-type",
        b"expect",
        b"sec-fetch-site",
    )
)
"""Headers that a request may have only once. With two, a proxy in front might check one, and the server might use the
other."""
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Guard:
    """The guard as plain ASGI middleware.

    It sets `scope["weft.request_id"]`, `scope["weft.tenant"]` for `GUARDED` paths, and `scope["weft.send"]`, the
    server's unwrapped `send`. Streams send their events with that function directly, because each wrapper around
    `send` costs as much as the rest of an event."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state, self._tenants = app, state, state.tenants
        self._origins = Origins(state.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id", b"")
        request_id = client_id.decode() if REQUEST_ID.fullmatch(client_id) else new_hex()
        scope["weft.request_id"] = request_id
        # Anthropic's clients read the id from a header without "x-".
        id_headers = [b"x-request-id", *([b"request-id"] if is_messages(scope["path"]) else [])]
        scope["weft.send"] = send
        began, status = time.perf_counter(), 0
        body = LimitedBody(receive, self._max_bytes(scope["path"]), self._tenants)

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(name, request_id.encode()) for name in id_headers]
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        self._tenants.num_inside += 1
        try:
            self._check(scope, headers, body.max_bytes)
            with body, ExitStack() as admitted:
                # Only POST runs the model or stores data, so only POST counts against a tenant's limits.
                if "weft.tenant" in scope and scope["method"] == "POST":
                    counted = CountedRequest(self._tenants, scope["weft.tenant"])
                    body.received = admitted.enter_context(counted).received
                await self._app(scope, body, send_noted)
        except ApiError as error:
            scope["weft.error"] = error
            # If the response has started, its status can't change any more.
            if status:
                raise
            # A client that sent `Expect` has not sent its body: it waits for this answer first.
            if b"expect" not in headers:
                await body.discard()
            await _refuse(send_noted, error, scope)
        except asyncio.CancelledError:
            # At the end of draining, uvicorn cancels the remaining requests. Their clients get an error.
            if not self._state.is_draining:
                raise
            scope["weft.error"] = server_ended()
            if not status:
                await _refuse(send_noted, scope["weft.error"], scope)
        finally:
            self._tenants.num_inside -= 1
            self._count(scope)
            log_request(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: dict[bytes, bytes], max_bytes: int) -> None:
        path = scope["path"]
        names = [name for name, _ in scope["headers"] if name in SINGLE_HEADERS]
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1).decode()
            raise ApiError(f"the header {repeated} comes more than once; give one", code="duplicate_header")
        if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise ApiError("the server meets no expectation but 100-continue; leave out Expect", 417)
        max_connections = self._state.config.max_connections
        num_open = len(self._state.connections.open)
        if num_open > max_connections and path not in WATCHED:
            raise ApiError(
                f"{max_connections} connections are open, as many as may be; try again later",
                503,
                code="too_many_connections",
                retry_after_s=1,
            )
        self._origins.check(headers, path)
        if path.startswith(GUARDED) and scope["method"] != "OPTIONS":
            tenant = self._tenant(headers)
            if tenant is None:
                raise ApiError(
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY, or as x-api-key: KEY",
                    401,
                    code="invalid_api_key",
                )
            scope["weft.tenant"] = tenant
            if "weft.connection" in scope:
                self._tenants.hold(tenant, scope["weft.connection"], num_open)
            if self._state.is_draining and scope["method"] == "POST":
                raise ApiError(
                    "the server is about to end; ask another", 503, code="draining", retry_after_s=1
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > max_bytes:
            raise TooLargeError(max_bytes)

    def _tenant(self, headers: dict[bytes, bytes]) -> Tenant | None:
        """Return the tenant of a request's key; None for a wrong key, or for two that differ."""
        bearers = [headers[AUTHORIZATION]] if AUTHORIZATION in headers else []
        if API_KEY in headers:
            bearers.append(b"Bearer " + headers[API_KEY])
        tenants = {self._tenants.of(bearer) for bearer in bearers or [b""]}
        return tenants.pop() if len(tenants) == 1 else None

    def _max_bytes(self, path: str) -> int:
        config = self._state.config
        return config.programs.max_module_bytes if path == UPLOADS else config.max_body_bytes

    def _count(self, scope: Scope) -> None:
        """Count a failed request. The code that refused it has put the error into the scope."""
        error, job = scope.get("weft.error"), scope.get("weft.job")
        if error is not None:
            model = scope.get("weft.model", "") if job is None else job.served.name
            self._state.metrics.refuse(model, reason_of(error))


async def _refuse(send: Send, error: ApiError, scope: Scope) -> None:
    body = error.content(scope["path"], scope["weft.request_id"])
    headers = [*error.headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# -- the size of bodies

DISCARD_S, DISCARD_BODIES = 1.0, 4
"""Limits for draining the rest of a refused body: seconds, and bytes as a multiple of `max_bytes`."""


class TooLargeError(ApiError):
    """The body exceeds the size limit."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"the body has more than the {max_bytes} bytes that are read", 413, code="body_too_large"
        )


class LimitedBody:
    """An ASGI `receive` that limits a body to `max_bytes`, and all bodies together to the server's limit.

    Chunked bodies declare no length, so bytes are counted as they arrive. Raises `ApiError` above a limit. The bytes
    count against the server's limit until the `with` block ends, which is at the end of the answer. If `received` is
    set, it is called with the size of each part and whether the part is the last one.
    """

    def __init__(self, receive: Receive, max_bytes: int, tenants: Tenants) -> None:
        self.max_bytes = max_bytes
        self._receive, self._tenants = receive, tenants
        self._num_bytes, self._is_whole = 0, False
        self.received: Callable[[int, bool], None] | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self._num_bytes += size
        self._tenants.num_body_bytes += size
        if self._num_bytes > self.max_bytes:
            raise TooLargeError(self.max_bytes)
        self._tenants.check_all_bytes()
        if self.received is not None and message["type"] == "http.request":
            self.received(size, self._is_whole)
        return message

    def __enter__(self) -> LimitedBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tenants.num_body_bytes -= self._num_bytes

    async def discard(self) -> None:
        """Read and drop the rest of the body for a limited time. Otherwise a client that is still sending when the
        connection closes would lose the answer."""
        num_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                while not self._is_whole and num_bytes < DISCARD_BODIES * self.max_bytes:
                    message = await self._receive()
                    num_bytes += len(message.get("body", b""))
                    self._is_whole = not message.get("more_body", False)


# -- web pages

PAGE = "/"
SITE_HEADER, OTHER_SITES = b"sec-fetch-site", (b"cross-site", b"same-site")
"""The header in which a browser says how the page's site relates to the server's, and the refused values. A page from
another port of this machine counts as "same-site"."""
HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d*)?")


class Origins:
    """Protects a server without API keys from foreign web pages.

    A page can make the browser send requests to this machine. `Origin` or, without it, `Sec-Fetch-Site` reveals such a
    request. A page can also make its own domain resolve to this machine (DNS rebinding), so that the browser sees a
    single origin. Then `Host` reveals the request, because it holds that domain.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._has_keys = bool(config.api_keys)
        self._allowed = {origin.lower() for origin in config.allowed_origins}
        self._hosts = {config.host.lower(), "localhost", *(name.lower() for name in config.allowed_hosts)}
        self._checks_hosts = is_loopback(config.host)

    def check(self, headers: Mapping[bytes, bytes], path: str = "/v1") -> None:
        """Raise `ApiError` for a request that a foreign page may have sent. Any page may link to the playground."""
        if self._has_keys:
            return
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._checks_hosts and host and not self._is_known(host):
            raise ApiError(
                f"this server has no API key and takes no requests for {host[:200]!r}, which a strange web page may "
                "have made lead here; give the name in allowed_hosts (--allow-host), or use keys",
                403,
                code="host_not_allowed",
            )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if b"origin" in headers:
            is_refused = not self._allowed & {"*", origin} and not _is_origin_of(origin, host)
        else:
            # Browsers load images and scripts without Origin. They send Sec-Fetch-Site instead, but only to
            # loopback addresses and over https.
            is_refused = (
                path != PAGE and "*" not in self._allowed and headers.get(SITE_HEADER, b"") in OTHER_SITES
            )
        if is_refused:
            raise ApiError(
                f"this server has no API key and takes no requests of pages of {origin[:200] or 'other origins'!r}; "
                "give it in allowed_origins (--allow-origin), or use keys",
                403,
                code="origin_not_allowed",
            )

    def _is_known(self, host: str) -> bool:
        """Return whether `Host` is a known server name or an IP address. DNS rebinding needs a name, so any address
        is safe."""
        match = HOST.fullmatch(host)
        name = match[1].rstrip(".") if match is not None else ""
        return name in self._hosts or _address(name) is not None


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address, which only this machine can reach."""
    address = _address(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _is_origin_of(origin: str, host: str) -> bool:
    """Return whether an `Origin` header names the server itself, as `Host` does."""
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False
