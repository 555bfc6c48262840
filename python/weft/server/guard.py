"""What every request passes before anything of it is read: the key, the size of its body, a number for the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.server.errors import ApiError
from weft.server.metrics import reason_of
from weft.server.origins import Origins
from weft.server.state import ServerState

GUARDED = ("/v1", "/tokenize", "/detokenize")
UPLOADS = "/v1/controllers"
LINGER_S, LINGER_BODIES = 1.0, 4
"""Of a body that is too long so many times the limit are read and dropped, for so long."""
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

_log = logging.getLogger("weft.server.access")


class TooLargeError(ApiError):
    """The body is longer than the server reads."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the body has more than the {most} bytes that are read", 413, code="body_too_large")


class Guard:
    """Pure ASGI: it wraps no body that goes out. Sets `scope["weft.tenant"]` and `scope["weft.request_id"]`; and
    `scope["weft.send"]`, which an answer sends its parts with: whoever stands between costs as much as the rest."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state, self._tenants = app, state, state.tenants
        self._origins = Origins(state.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        number = given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        scope["weft.request_id"] = number
        scope["weft.send"] = send
        began, status, most_bytes = time.perf_counter(), 0, self._most_bytes(scope["path"])

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        self._tenants.num_inside += 1
        try:
            self._check(scope, headers, most_bytes)
            await self._app(scope, _Limited(receive, most_bytes), noted)
        except ApiError as error:
            scope["weft.error"] = error
            if status:
                raise
            if error.status == 413 and b"expect" not in headers:
                await _discard(receive, most_bytes)
            await _refuse(noted, error)
        finally:
            self._tenants.num_inside -= 1
            self._count(scope)
            _note(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: dict[bytes, bytes], most_bytes: int) -> None:
        path = scope["path"]
        most = self._state.config.max_connections
        if len(self._state.connections.open) > most:
            raise ApiError(
                f"{most} connections are open, as many as may be; try again later",
                503,
                code="too_many_connections",
                retry_after_s=1,
            )
        self._origins.check(headers)
        if path.startswith(GUARDED) and scope["method"] != "OPTIONS":
            tenant = self._tenants.of(headers.get(b"authorization", b""))
            if tenant is None:
                raise ApiError(
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    401,
                    code="invalid_api_key",
                )
            scope["weft.tenant"] = tenant
            if self._state.is_draining and scope["method"] == "POST":
                raise ApiError(
                    "the server is about to end; ask another", 503, code="draining", retry_after_s=1
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most_bytes:
            raise TooLargeError(most_bytes)

    def _most_bytes(self, path: str) -> int:
        config = self._state.config
        return config.programs.max_module_bytes if path == UPLOADS else config.max_body_bytes

    def _count(self, scope: Scope) -> None:
        """Count a refusal, wherever it came from: whoever refuses leaves the error in the scope."""
        error, job = scope.get("weft.error"), scope.get("weft.job")
        if error is not None:
            model = scope.get("weft.model", "") if job is None else job.served.name
            self._state.metrics.refuse(model, reason_of(error))


class _Limited:
    """A body in parts, up to the limit: chunked bodies tell no length."""

    def __init__(self, receive: Receive, most_bytes: int) -> None:
        self._receive, self._most_bytes, self._num_bytes = receive, most_bytes, 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._most_bytes:
            raise TooLargeError(self._most_bytes)
        return message


async def _discard(receive: Receive, most_bytes: int) -> None:
    """Read on for a while: a client that still sends when its connection closes does not get to see the answer."""
    num_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while num_bytes < LINGER_BODIES * most_bytes:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


async def _refuse(send: Send, error: ApiError) -> None:
    body = error.content
    headers = [*error.headers, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _note(scope: Scope, status: int, seconds: float) -> None:
    """One line of the access log; `weft.server.logs` writes it as text or as JSON."""
    if not _log.isEnabledFor(logging.INFO):
        return
    job, error, tenant = scope.get("weft.job"), scope.get("weft.error"), scope.get("weft.tenant")
    fields: dict[str, Any] = {
        "request_id": scope["weft.request_id"],
        "method": scope["method"],
        "path": scope["path"],
        "status": status or None,
        "ms": round(seconds * 1000, 1),
        "tenant": tenant.name if tenant is not None else None,
        "model": job.served.name if job is not None else None,
        "prompt_tokens": job.prompt_tokens if job is not None else None,
        "guide": job.guide.kind if job is not None and job.guide is not None else None,
        "stream": job.body.stream if job is not None else None,
        "left": scope.get("weft.left"),
        "error": error.message[:200] if error is not None else None,
    }
    said = {name: value for name, value in fields.items() if value is not None}
    _log.info("%s", json.dumps(said), extra={"weft": said})
