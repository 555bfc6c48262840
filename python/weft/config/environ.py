"""Environment variables. Apart from the command line, no other module reads them."""

from __future__ import annotations

import os
from pathlib import Path


def is_debug() -> bool:
    """Whether WEFT_DEBUG is set: the command line then prints the traceback of an error."""
    return bool(os.environ.get("WEFT_DEBUG"))


def named_commit() -> str | None:
    """The commit that an installed wheel was built from, as WEFT_COMMIT says; benchmarks record it."""
    return os.environ.get("WEFT_COMMIT")


def kernel_variant() -> str | None:
    """The variant of the CUDA kernels that WEFT_KERNELS names (`ops/variants.py`), for measurements."""
    return os.environ.get("WEFT_KERNELS")


def cache_directory() -> Path:
    """The directory of downloaded models and other caches: WEFT_CACHE, or `weft` in XDG_CACHE_HOME (~/.cache)."""
    directory = os.environ.get("WEFT_CACHE")
    if directory:
        return Path(directory)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
