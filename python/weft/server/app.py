"""Builds the ASGI application: the routes, the guard in front of them, and errors as JSON."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from weft.errors import brief
from weft.server.errors import ApiError, api_error, in_words
from weft.server.guard import Guard
from weft.server.routes import controllers, generation, messages, operating, responses, tokens
from weft.server.state import ServerState
from weft.server.traffic_log import log_throughput

PAGE = Path(__file__).with_name("page")
PAGE_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
"""The media types of the playground's files. The system's table may lack .js, and a browser runs no module of another
type."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
"""Headers of the playground's files. A model's output can't make the page load anything from, or connect to, another
server, nor run a script of its own. No other page may frame it, which prevents clickjacking. Browsers ask again at each
load, so that the files of two versions never meet."""


def create_app(state: ServerState) -> ASGIApp:
    """Build the application. While it runs, it checks the connections for slow clients, and logs the throughput. It
    does not close `state`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(state.connections.watch()),
            asyncio.create_task(log_throughput(state.metrics)),
        ]
        yield
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app = FastAPI(title="weft", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.weft = state
    app.router.routes.extend([*generation.ROUTES, *messages.ROUTES])
    for routes in (responses, tokens, operating, controllers):
        app.include_router(routes.router)
    if state.config.has_page:
        app.router.routes.extend(_page_routes())
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(Exception, _internal_error)
    guarded: ASGIApp = Guard(app, state)
    if state.config.allowed_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=list(state.config.allowed_origins),
            expose_headers=["x-request-id", "request-id", "x-weft-ignored", "retry-after"],
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return guarded


def _page_routes() -> list[Route]:
    """Return a route for each file of the playground. Their paths are fixed, so no request names a file."""

    def answer_with(file: Path) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return FileResponse(file, headers=PAGE_HEADERS, media_type=PAGE_MEDIA_TYPES[file.suffix])

        return answer

    files = {f"/page/{file.name}": file for file in sorted(PAGE.iterdir()) if file.suffix in PAGE_MEDIA_TYPES}
    files["/"] = files.pop("/page/index.html")
    return [Route(path, answer_with(file), methods=["GET"]) for path, file in files.items()]


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    request.scope["weft.error"] = error
    headers = {name.decode(): value.decode() for name, value in error.headers}
    content = error.content(request.scope["path"], request.scope["weft.request_id"])
    return Response(content, error.status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = brief(request.scope["path"], 100)
    near = _near_route(request) if error.status_code == 404 else None
    hint = f"; it is {brief(near, 100)}" if near is not None else ""
    messages = {
        404: f"there is no route {path}{hint}",
        405: f"{path} does not take {request.scope['method']}",
    }
    message = messages.get(error.status_code, str(error.detail))
    answer = await _api_error(request, ApiError(message, error.status_code))
    answer.headers.update(error.headers or {})
    return answer


def _near_route(request: Request) -> str | None:
    """Return the path that the client probably meant, if /v1 is missing or superfluous; None if there is none."""
    path = request.scope["path"]
    for near in (f"/v1{path}", path.removeprefix("/v1")):
        scope = {**request.scope, "path": near}
        routes = request.app.router.routes
        if len(near) > 1 and any(route.matches(scope)[0] is not Match.NONE for route in routes):
            return str(near)
    return None


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception, with status 500 unless `api_error` knows a better one. The client gets no details
    but the exception's type. The log has the traceback."""
    return await _api_error(request, api_error(error))


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return await _api_error(
        request, ApiError(f"{first['loc'][-1]}: {in_words(first)}", param=str(first["loc"][-1]))
    )


async def _client_left(request: Request, error: Exception) -> Response:
    """Record that the client disconnected before it sent its whole body. No client reads this response."""
    request.scope["weft.left"] = True
    return Response(status_code=499)
