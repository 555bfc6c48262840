"""What every request passes before anything of it is read: the key, the size of its body, a number for the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.server.errors import ApiError
from weft.server.tenants import Tenants

GUARDED = ("/v1", "/tokenize", "/detokenize")
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

    def __init__(
        self, app: ASGIApp, tenants: Tenants, most_bytes: int, is_draining: Callable[[], bool]
    ) -> None:
        self._app, self._tenants, self._most_bytes = app, tenants, most_bytes
        self._is_draining = is_draining

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
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        self._tenants.num_inside += 1
        try:
            self._check(scope, headers)
            await self._app(scope, _Limited(receive, self._most_bytes), noted)
        except ApiError as error:
            scope["weft.error"] = error
            if status:
                raise
            if error.status == 413 and b"expect" not in headers:
                await _discard(receive, self._most_bytes)
            await _refuse(noted, error)
        finally:
            self._tenants.num_inside -= 1
            _note(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path = scope["path"]
        if path.startswith(GUARDED) and scope["method"] != "OPTIONS":
            tenant = self._tenants.of(headers.get(b"authorization", b""))
            if tenant is None:
                raise ApiError(
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    401,
                    code="invalid_api_key",
                )
            scope["weft.tenant"] = tenant
            if self._is_draining() and scope["method"] == "POST":
                raise ApiError(
                    "the server is about to end; ask another", 503, code="draining", retry_after_s=1
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._most_bytes:
            raise TooLargeError(self._most_bytes)


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
