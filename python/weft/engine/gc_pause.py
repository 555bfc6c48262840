"""No garbage is collected within a step of the engine."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_postponed() -> Iterator[None]:
    """Collect no garbage inside: what a collection frees may be the device's, and it takes long."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
