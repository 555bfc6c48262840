"""What the environment says. Nothing else of the package reads it, but the command line."""

from __future__ import annotations

import os
from pathlib import Path


def is_debug() -> bool:
    """Whether WEFT_DEBUG is set: errors of the command line then come with their traceback."""
    return bool(os.environ.get("WEFT_DEBUG"))


def named_commit() -> str | None:
    """The commit that an installed wheel was built from, where WEFT_COMMIT says so: benchmarks write it down."""
    return os.environ.get("WEFT_COMMIT")


def kernel_variant() -> str | None:
    """The variant of CUDA's kernels that WEFT_KERNELS names (`ops/variants.py`), for measurements."""
    return os.environ.get("WEFT_KERNELS")


def cache_directory() -> Path:
    """Where weft keeps what it got and made: WEFT_CACHE, or `weft` in XDG_CACHE_HOME (default: ~/.cache)."""
    own = os.environ.get("WEFT_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
