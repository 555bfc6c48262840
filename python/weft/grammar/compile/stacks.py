"""Threads with stacks of a known size.

Grammar libraries recurse with the depth of a guide, and a stack overflow ends the process. The longest chain of a
guide (`CompileLimits.max_chain`) is measured against these sizes, so every thread that compiles sets its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

COMPILE_BYTES = 64 << 20
"""The stack of threads that compile: eight times the need of a chain of the default `max_chain`. Untouched pages of
it take no memory."""

TRIAL_BYTES = COMPILE_BYTES // 2
"""The stack of a trial's compile. A guide that passes has twice as much in the real compile."""

STEP_BYTES = 512 << 10
"""The stack of a trial's walk. Masks are filled on threads of the engine and of the driver, whose stacks weft does
not choose."""

_lock = threading.Lock()


def start(thread: threading.Thread, stack_bytes: int) -> None:
    """Start a thread with a stack of this size."""
    with _lock:  # threading.stack_size is a setting of the whole process
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


def call(function: Callable[[], T], stack_bytes: int) -> T:
    """Call `function` on a thread with a stack of this size, and wait. Returns its result or raises its exception."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="weft-stack", daemon=True)
    start(thread, stack_bytes)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
