"""Every error that weft raises on purpose.

WeftError
├── DriverError            a driver call failed; carries the driver's name for it (also RuntimeError)
├── GraphError             a graph was captured or replayed against the rules (also RuntimeError)
├── HostFuncError          a host function can't be launched or was freed too early (also RuntimeError)
├── InterfaceError         an installed package is not the one weft can call (also RuntimeError)
├── InputError             something a caller gave is wrong (also ValueError)
│   ├── GuideError         a guide that does not compile, or can't be met
│   ├── TokenizerError     a tokenizer that can't be read or does not fit the model
│   └── ModelError         a model directory with missing, wrong or unknown parts
├── ExecutorError          an executor that was shut down, or whose loop failed (also RuntimeError)
└── RequestError           one request failed; its neighbours did not
    ├── GuideStateError    the grammar refused a token, reached a dead end, or its matcher failed
    ├── DeadEndError       the request's bad words or biases forbid every token
    └── CapacityError      the request does not fit the engine's limits
        └── UnavailableError   not now: the same request may be served later
"""

from __future__ import annotations

from typing import Any

MAX_MESSAGE = 4000
"""Letters of an error's text, which may quote what a client sent."""


def shortened(text: str, most: int = MAX_MESSAGE) -> str:
    """A text of at most `most` letters, and what says how many were left out of its middle."""
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    return f"{text[:head]} [... {len(text) - most} letters are left out ...] {text[-tail:]}"


def escaped(text: str) -> str:
    """A text of anybody's as one line that a terminal or a log may be given: control characters, line ends, invisible
    and bidirectional marks stand there as Python writes them in a literal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def readable(text: str) -> str:
    """A text that may quote anybody, as one line that is short enough to keep: at most some 2 * `MAX_MESSAGE`."""
    line = escaped(shortened(text))
    return line if len(line) <= 2 * MAX_MESSAGE else shortened(line)  # of what is escaped, mostly


def brief(text: object, most: int = 200) -> str:
    """What may quote anybody, as one line of at most `most` letters: for logs."""
    line = escaped(str(text)[:most])
    return line if len(line) <= most else f"{line[: most - 1]}…"


class WeftError(Exception):
    """Base of all errors that weft raises on purpose. Their texts quote what strangers sent, so that each is escaped to
    one line, and shortened in its middle where it is too long to keep."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(readable(one) if isinstance(one, str) else one for one in args))


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
    """Something a caller gave is wrong; the message says what would be right."""


class GuideError(InputError):
    """A guide that does not compile, or that nothing can satisfy."""


class TokenizerError(InputError):
    """A tokenizer that can't be read, or that does not fit the model."""


class ModelError(InputError):
    """A model directory with missing, wrong or unknown parts; names the file and the key."""


class ExecutorError(WeftError, RuntimeError):
    """An executor takes no more calls: it was shut down, or its loop failed (then the cause is chained)."""


class RequestError(WeftError):
    """One request failed; its neighbours did not. Where `LLM.generate` or `LLM.stream` raises it, `output` is the
    `weft.Output` as far as it came."""

    output: Any = None


class GuideStateError(RequestError):
    """The grammar refused a token, reached a dead end, or its matcher failed."""


class DeadEndError(RequestError):
    """The bad words or biases that a request asks for forbid every token."""


class CapacityError(RequestError):
    """The request does not fit the engine's limits."""


class UnavailableError(CapacityError):
    """What the request needs is not to be had now, through no fault of its own; the same one may be served later."""
