"""Host tasks that do nothing, for measuring the overhead of launching them."""

from __future__ import annotations

import ctypes

from weft.runtime.interface import NativeTask

_libc = ctypes.CDLL(None)


def native_noop() -> NativeTask:
    """Return a native task whose function, `abs` of the C library, returns at once."""
    address = ctypes.cast(_libc.abs, ctypes.c_void_p).value
    assert address is not None
    return NativeTask("noop", address, 0, _libc)


def python_noop() -> None:
    """Do nothing."""
