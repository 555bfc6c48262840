"""Submits a job's requests to the engine and sends the answers over HTTP, streamed or in one response.

An error before the first byte sets the HTTP status. A later one is sent as an event of the stream. If the client
disconnects, its requests are cancelled.
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

IGNORED_HEADER = b"x-weft-ignored"
"""Lists the fields of the request that have no effect. Only the last chunk of a stream has the object `weft`, and only
with `include_usage`."""
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
PART_BYTES = 64 << 10
"""A response that is not streamed is sent in parts of this many bytes. In one part, the bytes that a slow client has
not read would be in memory twice."""
DIRECT_SEQUENCES = 64
"""Jobs up to this many sequences are submitted on the event loop. Submitting a thousand sequences would block it for
10 ms, or for 100 ms while the engine is busy."""


class Writer(Protocol):
    """Formats a route's answer from increments, either as events or as one object."""

    def chunks(self, increments: Sequence[Increment]) -> bytes:
        """Return the events for some increments."""

    def last(self) -> bytes:
        """Return the final events, after the last increment."""

    def failed(self, error: ApiError) -> bytes:
        """Return the events for an error after the first chunk."""

    def api_error(self, error: BaseException) -> ApiError:
        """Convert an exception to the error that the client gets."""

    def whole(self, increments: Sequence[Increment]) -> dict[str, Any]:
        """Return the complete answer, built from all increments."""


class AnswerResponse(HttpResponse):
    """An HTTP response that runs a job and sends its answers."""

    def __init__(self, job: Job, writer: Writer, tenant: Tenant, state: ServerState) -> None:
        self.status_code, self.background = 200, None
        self._job, self._writer, self._tenant, self._state = job, writer, tenant, state
        self._ignored_header = [(IGNORED_HEADER, ", ".join(job.ignored).encode())] if job.ignored else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. If the client disconnects first, cancel the job."""
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
                state.metrics.request(job, lambda: "weft.left" in scope) as watched,
            ):
                scope["weft.watched"] = watched
                responses = await self._submitted()
                watched.num_submitted = job.num_answers
                answers = Answers(job.served, responses, job.body.num_answers, state.pause_s)
                try:
                    if not job.body.stream:
                        await self._send_whole_answer(send, answers, watched)
                        return
                    while increments := await answers.next():
                        watched.note(increments)
                        content = self._writer.chunks(increments)
                        if not has_started:
                            # Send status 200 only now, so that an error before the first token can set its own
                            # status.
                            has_started = True
                            await send(
                                {
                                    "type": "http.response.start",
                                    "status": 200,
                                    "headers": [*STREAM_HEADERS, *self._ignored_header],
                                }
                            )
                        if content:
                            await _send_part(send_event, content)
                finally:
                    answers.close()
                await _send_part(send_event, self._writer.last(), is_last=True)
        except asyncio.CancelledError:
            # Either the client has disconnected, or the server is shutting down. Only in the second case is there a
            # client to answer.
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
        await _send_whole(send, 200, body, [(b"content-type", b"application/json"), *self._ignored_header])

    async def _submitted(self) -> list[Response]:
        """Submit the job's requests. Raises `ApiError`, for example if the engine is full."""
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
                # The thread can't be interrupted, so drop the requests after it has submitted them.
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
            content = answer.content(scope["path"], scope["weft.request_id"])
            await _send_whole(send, answer.status, content, answer.headers)


async def _send_whole(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    # The last part is sent below. It is never empty, unless the body is.
    for start in range(0, len(body) - PART_BYTES, PART_BYTES):
        await _send_part(send, body[start : start + PART_BYTES])
    await _send_part(send, body[max(len(body) - 1, 0) // PART_BYTES * PART_BYTES :], is_last=True)


async def _send_part(send: Send, content: bytes, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": not is_last})


def _drop(client: EngineClient, submitting: asyncio.Future[list[Response]]) -> None:
    if not submitting.cancelled() and submitting.exception() is None:
        client.drop(submitting.result())


async def _disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
