"""The exceptions that weft raises on purpose.

WeftError
├── DriverError            a driver call failed; carries the driver's name for it (also RuntimeError)
├── GraphError             a graph was captured or replayed against the rules (also RuntimeError)
├── HostFuncError          a host function can't be launched or was freed too early (also RuntimeError)
├── InterfaceError         an installed package is not the one weft can call (also RuntimeError)
├── InputError             an argument or input is wrong (also ValueError)
│   ├── GuideError         a guide does not compile, or nothing satisfies it
│   ├── TokenizerError     a tokenizer can't be read or does not fit the model
│   └── ModelError         a model directory has missing, wrong or unknown parts
├── AnswerError            an answer is no object of its guide's Python type (also ValueError)
├── ExecutorError          an executor was shut down, or its loop failed (also RuntimeError)
└── RequestError           one request failed; others go on
    ├── GuideStateError    the grammar refused a token, reached a dead end, or its matcher failed
    ├── DeadEndError       the request's bad words or biases forbid every token
    └── CapacityError      the request does not fit the engine's limits
        └── UnavailableError   not now; the same request may be served later
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "AnswerError",
    "CapacityError",
    "DeadEndError",
    "DriverError",
    "ExecutorError",
    "GraphError",
    "GuideError",
    "GuideStateError",
    "HostFuncError",
    "InputError",
    "InterfaceError",
    "ModelError",
    "RequestError",
    "TokenizerError",
    "UnavailableError",
    "WeftError",
]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters besides the line break and the tab, other separators of lines, and overrides of direction."""
MAX_MESSAGE = 4000
"""The maximum length of an error message in characters. A message may quote a client's input."""


def shortened(text: str, limit: int = MAX_MESSAGE) -> str:
    """Cut a text above `limit` characters in the middle, and note how many characters are left out. The note comes on
    top of `limit`."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    head = limit - tail
    return f"{text[:head]} [... {len(text) - limit} letters are left out ...] {text[-tail:]}"


def escaped(text: str) -> str:
    """Escape untrusted text to one line that is safe for a terminal or a log. Control characters, line breaks, and
    invisible and bidirectional characters are written as in a Python literal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_terminal(text: str) -> str:
    """Escape the control characters of a model's text, so that it can't command a terminal. Line breaks and tabs
    remain; carriage returns, which would overwrite a line, are dropped."""
    return _CONTROL.sub(lambda found: "" if found[0] == "\r" else escaped(found[0]), text)


def readable(text: str) -> str:
    """Shorten and escape untrusted text to one line of at most about 2 * `MAX_MESSAGE` characters."""
    line = escaped(shortened(text))
    return line if len(line) <= 2 * MAX_MESSAGE else shortened(line)  # escapes may lengthen it


def brief(text: object, limit: int = 200) -> str:
    """Cut and escape untrusted text to one line of at most `limit` characters, for logs."""
    line = escaped(str(text)[:limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class WeftError(Exception):
    """Base class of all errors that weft raises on purpose. A message may quote a client's input, so it is escaped to
    one line, and a long one is cut in the middle."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(readable(arg) if isinstance(arg, str) else arg for arg in args))


class DriverError(WeftError, RuntimeError):
    """A driver call failed. `name` is the driver's name for the error, and `code` is its number."""

    def __init__(self, message: str, name: str = "CUDA_ERROR_UNKNOWN", code: int = 999) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


class GraphError(WeftError, RuntimeError):
    """A graph was captured or replayed in a way that is not allowed."""


class HostFuncError(WeftError, RuntimeError):
    """A host function can't be launched, or its payload was freed while a graph still uses it."""


class InterfaceError(WeftError, RuntimeError):
    """An installed package does not have the interface that weft calls."""


class InputError(WeftError, ValueError):
    """An argument or input is invalid. The message says what is valid."""


class GuideError(InputError):
    """A guide does not compile, or nothing satisfies it."""


class TokenizerError(InputError):
    """A tokenizer can't be read, or does not fit the model."""


class ModelError(InputError):
    """A model directory has missing, invalid or unknown parts. The message names the file and the key."""


class AnswerError(WeftError, ValueError):
    """An answer is not an object of its guide's Python type: it was cut, or a validator of the type refuses it."""


class ExecutorError(WeftError, RuntimeError):
    """An executor accepts no more calls, because it was shut down or its loop failed. After a failure, the cause is
    chained."""


class RequestError(WeftError):
    """A single request failed. Other requests continue."""

    output: Any = None
    """The partial `weft.Output`, if `LLM.generate` or `LLM.stream` raises the error."""


class GuideStateError(RequestError):
    """The grammar refused a token, reached a dead end, or its matcher failed."""


class DeadEndError(RequestError):
    """The bad words or biases of a request forbid every token."""


class CapacityError(RequestError):
    """The request does not fit the engine's limits."""


class UnavailableError(CapacityError):
    """The request can't be served now, although it is valid. The same request may succeed later."""
