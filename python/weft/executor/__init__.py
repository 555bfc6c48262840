"""Serving: TensorRT-LLM's Executor API over weft's engine. See docs/executor.md."""

from typing import Any

from weft.engine.logits_processors import ProcessorRows
from weft.errors import InputError
from weft.executor.executor import Executor
from weft.executor.types import *  # noqa: F403
from weft.executor.types import __all__ as _types
from weft.executor.types.refused import refusal as _refusal

__all__ = ["Executor", "ProcessorRows", *_types]


def __getattr__(name: str) -> Any:
    """Names of TensorRT-LLM's that weft refuses, also when they are imported, say so (`InputError`)."""
    if (reason := _refusal(name)) is not None:
        raise InputError(reason)
    raise AttributeError(f"module 'weft.executor' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
