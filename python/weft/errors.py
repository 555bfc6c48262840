"""Every error that weft raises on purpose.

WeftError
├── DriverError            a driver call failed; carries the driver's name for it (also RuntimeError)
├── GraphError             a graph was captured or replayed against the rules (also RuntimeError)
├── HostFuncError          a host function can't be launched or was freed too early (also RuntimeError)
├── InterfaceError         an installed package is not the one weft can call (also RuntimeError)
├── InputError             an argument or input is wrong (also ValueError)
│   ├── GuideError         a guide does not compile, or nothing satisfies it
│   ├── TokenizerError     a tokenizer can't be read or does not fit the model
│   └── ModelError         a model directory has missing, wrong or unknown parts
├── ExecutorError          an executor was shut down, or its loop failed (also RuntimeError)
└── RequestError           one request failed; others go on
    ├── GuideStateError    the grammar refused a token, reached a dead end, or its matcher failed
    ├── DeadEndError       the request's bad words or biases forbid every token
    └── CapacityError      the request does not fit the engine's limits
        └── UnavailableError   not now; the same request may be served later
"""

from __future__ import annotations

from typing import Any

__all__ = [
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

MAX_MESSAGE = 4000
"""Characters of an error's text at most, which may quote a client's input."""


def shortened(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text, if it is not longer than `limit` characters; otherwise without its middle, and with a note of how many
    characters are left out."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    head = limit - tail
    return f"{text[:head]} [... {len(text) - limit} letters are left out ...] {text[-tail:]}"


def escaped(text: str) -> str:
    """Untrusted text as one line that is safe for a terminal or a log: control characters, line ends, invisible and
    bidirectional marks are escaped as in a Python literal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def readable(text: str) -> str:
    """Untrusted text as one line of at most some 2 * `MAX_MESSAGE` characters."""
    line = escaped(shortened(text))
    return line if len(line) <= 2 * MAX_MESSAGE else shortened(line)  # mostly escapes, which are longer


def brief(text: object, limit: int = 200) -> str:
    """Untrusted text as one line of at most `limit` characters, for logs."""
    line = escaped(str(text)[:limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class WeftError(Exception):
    """Base of all errors that weft raises on purpose. A message may quote a client's input. It is therefore escaped to
    one line, and shortened in its middle if it is long."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(readable(arg) if isinstance(arg, str) else arg for arg in args))


class DriverError(WeftError, RuntimeError):
    """A driver call failed. `name` is the driver's own name for the error, `code` its number."""

    def __init__(self, message: str, name: str = "CUDA_ERROR_UNKNOWN", code: int = 999) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


class GraphError(WeftError, RuntimeError):
    """A graph was captured or replayed against the rules."""


class HostFuncError(WeftError, RuntimeError):
    """A host function can't be launched, or its payload was freed under a living graph."""


class InterfaceError(WeftError, RuntimeError):
    """An installed package does not have the interface that weft calls."""


class InputError(WeftError, ValueError):
    """An argument or input is wrong; the message says what would be right."""


class GuideError(InputError):
    """A guide does not compile, or nothing satisfies it."""


class TokenizerError(InputError):
    """A tokenizer can't be read, or does not fit the model."""


class ModelError(InputError):
    """A model directory has missing, wrong or unknown parts; the message names the file and the key."""


class ExecutorError(WeftError, RuntimeError):
    """An executor takes no more calls: it was shut down, or its loop failed, and then the cause is chained."""


class RequestError(WeftError):
    """One request failed; others go on."""

    output: Any = None
    """The `weft.Output` so far, if `LLM.generate` or `LLM.stream` raises the error."""


class GuideStateError(RequestError):
    """The grammar refused a token, reached a dead end, or its matcher failed."""


class DeadEndError(RequestError):
    """The bad words or biases of a request forbid every token."""


class CapacityError(RequestError):
    """The request does not fit the engine's limits."""


class UnavailableError(CapacityError):
    """The request can't be served now, through no fault of its own; the same request may be served later."""
