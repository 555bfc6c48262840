"""Reads environment variables. Apart from the command line, no other module reads any."""

from __future__ import annotations

import os
from pathlib import Path


def is_debug() -> bool:
    """Return whether WEFT_DEBUG is set. The command line then prints tracebacks of errors."""
    return bool(os.environ.get("WEFT_DEBUG"))


def named_commit() -> str | None:
    """Return WEFT_COMMIT, the commit that an installed wheel was built from. Benchmarks record it."""
    return os.environ.get("WEFT_COMMIT")


def kernel_variant() -> str | None:
    """Return WEFT_KERNELS, which selects a variant of the CUDA kernels (`ops/variants.py`), for benchmarks."""
    return os.environ.get("WEFT_KERNELS")


def cache_directory() -> Path:
    """Return the directory of downloaded models and other caches: WEFT_CACHE, or else `weft` in XDG_CACHE_HOME
    (~/.cache)."""
    directory = os.environ.get("WEFT_CACHE")
    if directory:
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
