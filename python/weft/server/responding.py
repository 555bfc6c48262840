"""Sends answers over HTTP: errors before the first byte have a status, and who leaves is cancelled."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from weft.client import responses
from weft.client.client import EngineClient
from weft.errors import UnavailableError, WeftError
from weft.server.errors import ApiError, api_error
from weft.server.metrics import Metrics, Watched
from weft.server.reading.jobs import Job
from weft.server.tenants import Tenant, Tenants
from weft.server.workers import Workers, on
from weft.server.writing.increments import Answers, Increment

_log = logging.getLogger("weft.server")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


PART_BYTES = 64 << 10
"""Of a whole answer so much is sent at once: what the client has not taken yet is held once, not twice."""

UNHURRIED, LONGEST = 16, 5
"""Above so many requests under way the pauses between a stream's events grow in proportion, to so many times: a server
whose events stay as frequent spends on sockets what its engine could compute with."""

FEW = 64
"""Sequences that are submitted on the event loop; a thousand would hold it for 10 ms, and 100 beside a busy engine."""


class Writer(Protocol):
    """Writes what a route answers."""

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """The events of what came."""

    def last(self) -> bytes:
        """What follows the last event."""

    def failed(self, error: ApiError) -> bytes:
        """What is sent where it fails after it has begun."""

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The answer, of all that came."""


class AnswerResponse(Response):
    """The answers to a job, streamed or whole."""

    def __init__(self, job: Job, writer: Writer, tenant: Tenant, services: Services) -> None:
        self.status_code, self.background = 200, None
        self._job, self._writer, self._tenant, self._services = job, writer, tenant, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client leaves before."""
        working = asyncio.ensure_future(self._run(scope, send))
        self._services.answering.add(working)
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                scope["weft.left"] = True
                working.cancel()
            with suppress(asyncio.CancelledError):
                await working
        finally:
            leaving.cancel()
            working.cancel()
            self._services.answering.discard(working)

    async def _run(self, scope: Scope, send: Send) -> None:
        metrics, job, started = self._services.metrics, self._job, False
        part_to: Send = scope.get("weft.send", send)
        scope["weft.job"] = job
        try:
            with (
                self._services.tenants.answering(self._tenant, len(job.requests) * job.num_each),
                metrics.request(job) as watched,
            ):
                responses = await self._submitted()
                answers = Answers(job.served, responses, job.num_each, self._services.pause_s)
                try:
                    if not job.body.stream:
                        await self._answer(send, answers, watched)
                        return
                    while more := await answers.next():
                        watched.came(more)
                        content = self._writer.chunks(more)
                        if not started:
                            started = True
                            await send(
                                {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
                            )
                        if content:
                            await _send_part(part_to, content)
                finally:
                    answers.close()
                await _send_part(part_to, self._writer.last(), is_last=True)
        except asyncio.CancelledError:
            if not self._services.has_ended or scope.get("weft.left"):
                raise
            await self._fail(scope, send, ended(), started)
        except Exception as error:
            await self._fail(scope, send, error, started)

    async def _answer(self, send: Send, answers: Answers, watched: Watched) -> None:
        """The whole answer, at its end."""
        came: list[Increment] = []
        while more := await answers.next():
            watched.came(more)
            came += more
        body = await on(self._services.workers.writing, lambda: self._whole(came))
        await _send_whole(send, 200, body, [(b"content-type", b"application/json")])

    async def _submitted(self) -> list[responses.Response]:
        """The job, submitted; many sequences on a thread. Raises `ApiError` where the engine takes no more."""
        client, requests = self._job.served.client, self._job.requests
        try:
            if len(requests) * self._job.num_each <= FEW:
                return client.submit(requests)
            submitting = asyncio.ensure_future(
                self._services.workers.read(self._tenant.number, lambda: client.submit(requests))
            )
            try:
                return await asyncio.shield(submitting)
            except asyncio.CancelledError:
                submitting.add_done_callback(partial(_drop, client))
                raise
        except WeftError as error:
            raise api_error(error, is_submitting=True) from error

    def _whole(self, came: list[Increment]) -> bytes:
        return json.dumps(self._writer.whole(came), ensure_ascii=False).encode()

    async def _fail(self, scope: Scope, send: Send, error: Exception, started: bool) -> None:
        told = self._job.told(error)
        scope["weft.error"] = told
        if told.status >= 500 and not isinstance(error, ApiError | UnavailableError):
            _log.error("a request failed: %s", error, exc_info=error)
        if started:
            await _send_part(send, self._writer.failed(told), is_last=True)
        else:
            await _send_whole(send, told.status, told.content, told.headers)


class Services:
    """What every answer needs of the server."""

    def __init__(self, tenants: Tenants, metrics: Metrics, workers: Workers, interval_s: float) -> None:
        self.tenants, self.metrics, self.workers = tenants, metrics, workers
        self._interval_s = interval_s
        self.answering: set[asyncio.Future[None]] = set()
        self.has_ended = False

    def end(self) -> None:
        """Cancel all answers; their clients are told."""
        self.has_ended = True
        for answer in self.answering:
            answer.cancel()

    def pause_s(self) -> float:
        """How long a stream's tokens gather now before they are sent, in seconds."""
        return self._interval_s * min(max(self.tenants.num_requests / UNHURRIED, 1.0), LONGEST)


def ended() -> ApiError:
    """What those hear whose answers take longer than a server that ends waits for."""
    return ApiError(
        "the server ended before the answer did; ask another", 503, code="draining", retry_after_s=1
    )


async def _send_whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for start in range(0, len(body) - PART_BYTES, PART_BYTES):
        await _send_part(send, body[start : start + PART_BYTES])
    await _send_part(send, body[max(len(body) - 1, 0) // PART_BYTES * PART_BYTES :], is_last=True)


async def _send_part(send: Send, content: bytes, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": not is_last})


def _drop(client: EngineClient, submitting: asyncio.Future[list[responses.Response]]) -> None:
    """Let go of requests whose client left while they were submitted."""
    if not submitting.cancelled() and submitting.exception() is None:
        client.drop(submitting.result())


async def _left(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
