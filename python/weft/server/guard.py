"""What every request passes before anything of it is read: the key, the size of its body, a number for the log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from contextlib import ExitStack
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft.server.body_limits import LimitedBody, TooLargeError
from weft.server.errors import ApiError
from weft.server.ids import new_hex
from weft.server.metrics import reason_of
from weft.server.origins import Origins
from weft.server.responding import ended
from weft.server.state import ServerState
from weft.server.tenants import Admission

GUARDED = ("/v1", "/tokenize", "/detokenize")
UPLOADS = "/v1/controllers"
WATCHED = ("/health", "/ready")
"""Asked by supervisors, which start a server anew that does not answer."""
ONCE = frozenset(
    (b"authorization", b"host", b"origin", b"content-length", b"content-type", b"expect", b"sec-fetch-site")
)
"""Headers of which a request has one: of two, a proxy might believe the other."""
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")

_log = logging.getLogger("weft.server.access")


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
        number = given.decode() if REQUEST_ID.fullmatch(given) else new_hex()
        scope["weft.request_id"] = number
        scope["weft.send"] = send
        began, status = time.perf_counter(), 0
        body = LimitedBody(receive, self._most_bytes(scope["path"]), self._state.bodies)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        self._tenants.num_inside += 1
        try:
            self._check(scope, headers, body.most_bytes)
            with body, ExitStack() as admitted:
                if "weft.tenant" in scope and scope["method"] == "POST":  # what computes, or keeps something
                    admission = Admission(self._tenants, scope["weft.tenant"])
                    body.received = admitted.enter_context(admission).received
                await self._app(scope, body, noted)
        except ApiError as error:
            scope["weft.error"] = error
            if status:
                raise
            if b"expect" not in headers:
                await body.discard()
            await _refuse(noted, error)
        except asyncio.CancelledError:
            if not self._state.is_draining:
                raise
            # The server ends, and waits for no body and no answer any longer.
            scope["weft.error"] = ended()
            if not status:
                await _refuse(noted, scope["weft.error"])
        finally:
            self._tenants.num_inside -= 1
            self._count(scope)
            _note(scope, status, time.perf_counter() - began)

    def _check(self, scope: Scope, headers: dict[bytes, bytes], most_bytes: int) -> None:
        path = scope["path"]
        names = [name for name, _ in scope["headers"] if name in ONCE]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1).decode()
            raise ApiError(f"the header {twice} comes more than once; give one", code="duplicate_header")
        if headers.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise ApiError("the server meets no expectation but 100-continue; leave out Expect", 417)
        most = self._state.config.max_connections
        if len(self._state.connections.open) > most and path not in WATCHED:
            raise ApiError(
                f"{most} connections are open, as many as may be; try again later",
                503,
                code="too_many_connections",
                retry_after_s=1,
            )
        self._origins.check(headers, path)
        if path.startswith(GUARDED) and scope["method"] != "OPTIONS":
            tenant = self._tenants.of(headers.get(b"authorization", b""))
            if tenant is None:
                raise ApiError(
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    401,
                    code="invalid_api_key",
                )
            scope["weft.tenant"] = tenant
            if "weft.connection" in scope:
                num_open = len(self._state.connections.open)
                self._tenants.hold(tenant, scope["weft.connection"], num_open)
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
