"""Threads with a fixed stack size.

Grammar libraries recurse with the depth of a guide, and a stack overflow ends the process. `CompileLimits.max_chain`
is chosen for these stack sizes. The default stack of a thread may be smaller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

COMPILE_BYTES = 64 << 20
"""Stack size of compile threads: eight times the need of a chain of the default `max_chain`. Untouched pages take no
memory."""

TRIAL_BYTES = COMPILE_BYTES // 2
"""Stack size of a trial's compile. A guide that passes has twice as much in the real compile."""

STEP_BYTES = 512 << 10
"""Stack size of a trial's walk. It is small, because masks are filled on threads whose stacks weft does not choose:
those of the engine and of the CUDA driver."""

_lock = threading.Lock()


def start(thread: threading.Thread, stack_bytes: int) -> None:
    """Start a thread with a stack of this size."""
    with _lock:  # threading.stack_size is process-wide
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
