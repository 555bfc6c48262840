"""The optional package `gguf`."""

from __future__ import annotations

from typing import Any

from weft.core.extras import install_hint
from weft.errors import InterfaceError


def gguf_library() -> Any:
    """Import the package `gguf`. Raises `InterfaceError` if it is not installed."""
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        raise InterfaceError(f"GGUF files need the package gguf: {install_hint('gguf')}") from error
    return gguf
