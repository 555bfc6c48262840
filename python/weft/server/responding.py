"""Submits the requests of a job and sends their answers over HTTP, streamed or whole.

An error before the first byte gets a status of its own; a later one is an event of the stream. If the client leaves,
its requests are cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from weft.client.client import EngineClient
from weft.client.responses import Response
from weft.errors import UnavailableError, WeftError
from weft.server.errors import ApiError, api_error, server_ended
from weft.server.metrics import Watched
from weft.server.reading.jobs import Job
from weft.server.state import ServerState
from weft.server.tenants import Tenant
from weft.server.workers import on
from weft.server.writing.increments import Answers, Increment

_log = logging.getLogger("weft.server")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
PART_BYTES = 64 << 10
"""Bytes of a whole answer that are sent at once. Data that a slow client has not taken is then held once, not twice."""
DIRECT_SEQUENCES = 64
"""Sequences up to which a job is submitted on the event loop. A thousand would hold the loop for 10 ms, or 100 ms
beside a busy engine."""


class Writer(Protocol):
    """Writes the answer of a route from increments, as events or as a whole."""

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """The events of some increments."""

    def last(self) -> bytes:
        """The events after the last increment."""

    def failed(self, error: ApiError) -> bytes:
        """The events of an error after the first chunk."""

    def api_error(self, error: BaseException) -> ApiError:
        """The error that the client gets."""

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """The whole answer, from all its increments."""


class AnswerResponse(HttpResponse):
    """The HTTP response with the answers of a job."""

    def __init__(self, job: Job, writer: Writer, tenant: Tenant, state: ServerState) -> None:
        self.status_code, self.background = 200, None
        self._job, self._writer, self._tenant, self._state = job, writer, tenant, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, unless the client leaves first."""
        working = asyncio.ensure_future(self._run(scope, send))
        self._state.answering.add(working)
        leaving = asyncio.ensure_future(_disconnected(receive))
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
            self._state.answering.discard(working)

    async def _run(self, scope: Scope, send: Send) -> None:
        job, state, has_started = self._job, self._state, False
        send_event: Send = scope.get("weft.send", send)
        scope["weft.job"] = job
        try:
            with (
                state.tenants.answering(self._tenant, job.num_answers),
                state.metrics.request(job) as watched,
            ):
                responses = await self._submitted()
                answers = Answers(job.served, responses, job.body.num_answers, state.pause_s)
                try:
                    if not job.body.stream:
                        await self._send_whole_answer(send, answers, watched)
                        return
                    while increments := await answers.next():
                        watched.note(increments)
                        content = self._writer.chunks(increments)
                        if not has_started:
                            # The status is sent only now, so that an error before the first token has its own.
                            has_started = True
                            await send(
                                {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
                            )
                        if content:
                            await _send_part(send_event, content)
                finally:
                    answers.close()
                await _send_part(send_event, self._writer.last(), is_last=True)
        except asyncio.CancelledError:
            # Either the client left, and hears nothing, or the server ends, and its clients get an error.
            if not state.has_ended or scope.get("weft.left"):
                raise
            await self._fail(scope, send, server_ended(), has_started)
        except Exception as error:
            await self._fail(scope, send, error, has_started)

    async def _send_whole_answer(self, send: Send, answers: Answers, watched: Watched) -> None:
        all_increments: list[Increment] = []
        while increments := await answers.next():
            watched.note(increments)
            all_increments += increments
        body = await on(self._state.workers.writing, lambda: self._json(all_increments))
        await _send_whole(send, 200, body, [(b"content-type", b"application/json")])

    async def _submitted(self) -> list[Response]:
        """Submit the job. Raises `ApiError` if the engine is full."""
        client, requests = self._job.served.client, self._job.requests
        try:
            if self._job.num_answers <= DIRECT_SEQUENCES:
                return client.submit(requests)
            submitting = asyncio.ensure_future(
                self._state.workers.read(self._tenant.number, lambda: client.submit(requests))
            )
            try:
                return await asyncio.shield(submitting)
            except asyncio.CancelledError:
                # The thread can't be stopped: drop the requests once it has submitted them.
                submitting.add_done_callback(partial(_drop, client))
                raise
        except WeftError as error:
            raise api_error(error, is_submitting=True) from error

    def _json(self, increments: list[Increment]) -> bytes:
        return json.dumps(self._writer.whole(increments), ensure_ascii=False).encode()

    async def _fail(self, scope: Scope, send: Send, error: Exception, has_started: bool) -> None:
        answer = self._writer.api_error(error)
        scope["weft.error"] = answer
        if answer.status >= 500 and not isinstance(error, ApiError | UnavailableError):
            _log.error("a request failed: %s", error, exc_info=error)
        if has_started:
            await _send_part(send, self._writer.failed(answer), is_last=True)
        else:
            await _send_whole(send, answer.status, answer.content, answer.headers)


async def _send_whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for start in range(0, len(body) - PART_BYTES, PART_BYTES):
        await _send_part(send, body[start : start + PART_BYTES])
    await _send_part(send, body[max(len(body) - 1, 0) // PART_BYTES * PART_BYTES :], is_last=True)


async def _send_part(send: Send, content: bytes, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": not is_last})


def _drop(client: EngineClient, submitting: asyncio.Future[list[Response]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        client.drop(submitting.result())


async def _disconnected(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
