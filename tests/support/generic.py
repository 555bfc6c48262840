"""Lets transformers' code run families that weft has modules for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from weft import registry


@contextmanager
def without_modules() -> Iterator[None]:
    """Context in which weft has no modules of its own."""
    with patch.dict(registry.MODELS, clear=True):
        yield
