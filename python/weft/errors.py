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
    └── CapacityError      the request does not fit the engine's limits
"""

from __future__ import annotations


class WeftError(Exception):
    """Base of all errors that weft raises on purpose."""


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
    """One request failed; its neighbours did not."""


class GuideStateError(RequestError):
    """The grammar refused a token, reached a dead end, or its matcher failed."""


class CapacityError(RequestError):
    """The request does not fit the engine's limits."""
