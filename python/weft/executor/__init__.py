"""Serving: TensorRT-LLM's Executor API over weft's engine. See docs/executor.md."""

from weft.executor.executor import Executor
from weft.executor.types import *  # noqa: F403
from weft.executor.types import __all__ as _types

__all__ = ["Executor", *_types]
