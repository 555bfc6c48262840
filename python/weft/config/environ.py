"""What the environment says. Nothing else of the package reads it, but the command line."""

from __future__ import annotations

import os


def is_debug() -> bool:
    """Whether WEFT_DEBUG is set: errors of the command line then come with their traceback."""
    return bool(os.environ.get("WEFT_DEBUG"))


def named_commit() -> str | None:
    """The commit that an installed wheel was built from, where WEFT_COMMIT says so: benchmarks write it down."""
    return os.environ.get("WEFT_COMMIT")
