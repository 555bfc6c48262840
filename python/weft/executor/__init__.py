"""Serving: TensorRT-LLM's Executor API over weft's engine. See docs/executor.md."""

from typing import Any

from weft.core.logits_processors import ProcessorRows
from weft.executor import kv_cache
from weft.executor.executor import Executor
from weft.executor.types import *  # noqa: F403
from weft.executor.types import __all__ as _types
from weft.executor.types.refused import MissingNameError as _MissingNameError
from weft.executor.types.refused import refusal as _refusal
from weft.version import __version__ as __version__

__all__ = ["Executor", "ProcessorRows", "kv_cache", *_types]


def __getattr__(name: str) -> Any:
    """Raise `MissingNameError` for an unknown name. The message gives weft's counterpart if there is one."""
    reason = _refusal(name)
    raise _MissingNameError(reason or f"module 'weft.executor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
