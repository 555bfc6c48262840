"""Triton kernels are imported on their first use: a machine without a GPU need not have Triton."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from weft.errors import InterfaceError


@cache
def triton_kernels(module: str) -> ModuleType:
    """The module `weft.ops.<module>`; InterfaceError where Triton is not installed."""
    try:
        return import_module(f"weft.ops.{module}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise InterfaceError("models on CUDA need Triton; install it with `pip install triton`") from error
