"""Errors of the server: an HTTP status, and a JSON object that names the invalid field.

The object is in OpenAI's format, or in Anthropic's below /v1/messages.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from weft.core.pydantic_errors import JSON_KINDS, OF_A_KEY, expected
from weft.errors import (
    CapacityError,
    DeadEndError,
    ExecutorError,
    GuideError,
    GuideStateError,
    InputError,
    UnavailableError,
    WeftError,
    shortened,
)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""OpenAI's types of errors, by status."""
MESSAGES_PATH = "/v1/messages"
"""The path of Anthropic's API."""
MESSAGES_TYPES = {**TYPES, 408: "timeout_error", 413: "request_too_large"}
"""Anthropic's types of errors, by status."""


class _Repr(reprlib.Repr):
    """Python's `repr`, except that None and booleans are written as in JSON."""

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"


_REPR = _Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxlevel = 1


def quoted(value: object) -> str:
    """Return a client's value for an error message, cut to about 100 characters."""
    return _REPR.repr(value)


def kind_of(value: object) -> str:
    """Describe a client's value for an error message: "a list", "an object", or any other value itself."""
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else quoted(value)


def in_words(error: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()) -> str:
    """Convert pydantic's error for a value to a message. For a union, `others` are the errors of its other members."""
    kind, context, value = error["type"], error.get("ctx", {}), error.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "too_short":
        count, lowest = context["actual_length"], context["min_length"]
        size = f"has {count}" if count else "is empty"
        return f"{size}; it must have at least {'one' if lowest == 1 else lowest}"
    if kind in ("string_too_long", "string_too_short"):
        bound = "at most" if kind == "string_too_long" else "at least"
        limit = context.get("max_length", context.get("min_length"))
        return f"has {len(value or '')} characters; it must have {bound} {limit}"
    wanted = expected(JSON_KINDS, error, *others) if kind in JSON_KINDS else None
    if wanted is None:
        return str(error["msg"]).removeprefix("Value error, ")
    if error["loc"] and error["loc"][-1] == OF_A_KEY:
        return f"this name must be {wanted}"
    return f"must be {wanted}, not {kind_of(value)}"


MAX_MESSAGE = 1000
"""The number of characters that are kept of a longer message. A message may quote a client's values."""


class ApiError(Exception):
    """An error that is sent to the client.

    `status` is the HTTP status, `param` the invalid field, `code` a machine-readable word, and `retry_after_s` the
    number of seconds after which the client may try again.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        """The response body in OpenAI's form."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def messages_body(self, request_id: str) -> dict[str, Any]:
        """Return the response body in Anthropic's form. weft adds `param` and `code` to its error object; Anthropic's
        clients read the code from `details`."""
        kind = MESSAGES_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        error = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        details = {} if self.code is None else {"details": {"error_code": self.code}}
        return {"type": "error", "error": {**error, **details}, "request_id": request_id}

    def content(self, path: str, request_id: str) -> bytes:
        """Return the response body as JSON, for a request to `path`."""
        return json.dumps(self.messages_body(request_id) if is_messages(path) else self.body).encode()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The HTTP headers of the error response."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


def is_messages(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


RETRY_AFTER_S = 5
"""Seconds after which a client may retry when something is unavailable, such as a busy compiler or a restarting
helper process."""


def api_error(
    error: BaseException,
    fields: Collection[str] = (),
    *,
    guide: str | None = None,
    is_submitting: bool = False,
) -> ApiError:
    """Convert any exception to the error that the client gets.

    `fields` are the names of the body's fields. If the message begins with one of them, it becomes `param`. `guide`
    is the field that holds the guide. With `is_submitting`, a `CapacityError` means that the engine is full;
    otherwise it means that the request is too large.
    """
    if isinstance(error, ApiError):
        return error
    answer = _api_error(error, fields, guide, is_submitting)
    answer.__cause__ = error
    return answer


def _api_error(
    error: BaseException, fields: Collection[str], guide: str | None, is_submitting: bool
) -> ApiError:
    if not isinstance(error, WeftError):
        return ApiError(f"the server failed: {type(error).__name__}", 500, code="internal_error")
    message = client_message(error)
    if isinstance(error, ExecutorError):
        return ApiError(message, 503, code="engine_stopped")
    if isinstance(error, UnavailableError):
        return ApiError(message, 503, code="unavailable", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, CapacityError) and is_submitting:
        return ApiError(message, 503, code="engine_full", retry_after_s=1)
    if isinstance(error, CapacityError):
        code = "context_length_exceeded" if "max_model_len" in message else "too_large"
        return ApiError(message, 400, param=named_field(message, fields), code=code)
    if isinstance(error, GuideError | GuideStateError):
        return ApiError(message, 400, param=guide, code="guide_error")
    if isinstance(error, InputError):
        return ApiError(message, 400, param=named_field(message, fields))
    if isinstance(error, DeadEndError):
        return ApiError(message, 400)
    return ApiError(message, 500, code="internal_error")  # a fault of the model or the engine


def server_ended() -> ApiError:
    """Return the error for a request that shutdown has cancelled."""
    return ApiError(
        "the server ended before the answer did; ask another", 503, code="draining", retry_after_s=1
    )


CLIENT_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r" \((?:EngineConfig|CompileLimits)\.\w+(?:; of an executor: [\w.]+)?\)", ""),
        (r" of trial, half of CompileLimits\.\w+", ""),
        (r"more than the (\d+ MiB) of CompileLimits\.\w+", r"more than \1"),
        (r"lower WasmLimits\.memory_bytes or undo_bytes", "give it less memory"),
        (r"(?:, or|:) raise WasmLimits\.\w+(?: \(at most CompileLimits\.\w+\))?", ""),
        (
            r"give strict=False \(--no-strict\), which",
            "give strict: false (in response_format.json_schema, in guide or in a function), which",
        ),
        (r"\bmax_seq_len\b", "max_model_len"),
        (r"\bGuide\.(?=[a-z])", "guide."),
        (r"(?<=\bor )None\b", "null"),
        (r"(?<=\bmay be )None\b", "null"),
    )
]
"""Replacements for messages about guides and limits, which use names of the Python API. For HTTP clients they use names
of JSON fields, and drop advice that only the server's operator can follow. In errors about requests, `FieldNames` does
the same."""


def client_message(error: WeftError) -> str:
    """Return an error's message, rewritten for HTTP clients and shortened."""
    return shortened(for_clients(str(error)), MAX_MESSAGE)


def for_clients(message: str) -> str:
    """Apply the replacements of `CLIENT_WORDS` to a message."""
    for pattern, words in CLIENT_WORDS:
        message = pattern.sub(words, message)
    return message


def named_field(message: str, fields: Collection[str]) -> str | None:
    """Return the field that a message begins with, either by name or as "the prompt"; None if there is none."""
    if message.startswith("the prompt "):
        return next((name for name in ("messages", "prompt") if name in fields), None)
    match = re.match(r"[a-z_]+", message)
    return match[0] if match is not None and match[0] in fields else None


def with_names(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Replace field names in an error's message and `param`. `names` maps them to a route's own names; a name comes
    before its prefixes. Modifies and returns the error."""
    pattern = rf"(?<![\w.])(?:{'|'.join(map(re.escape, names))})(?!\w)"
    error.message = re.sub(pattern, lambda match: names[match[0]], error.message)
    if error.param is not None:
        error.param = re.sub(pattern, lambda match: names[match[0]], error.param)
    return error
