"""Threads with stacks of a known size.

Grammar libraries recurse with the depth of a guide, and what overflows a stack ends the process. How far a chain may
go (`CompileLimits.max_chain`) is measured against these sizes, so no thread may bring the size of its surroundings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

COMPILE_BYTES = 64 << 20
"""The stack of threads that compile: eight times what a chain of the default `max_chain` needs. Memory is taken as it
is used."""

TRIAL_BYTES = COMPILE_BYTES // 2
"""The stack of a trial's compile: what passes has as much again where it is compiled in earnest."""

STEP_BYTES = 512 << 10
"""The stack of a trial's walk: masks are made on threads of the engine and of the driver, whose stacks weft does not
choose."""

_lock = threading.Lock()


def start(thread: threading.Thread, stack_bytes: int) -> None:
    """Start a thread with a stack of this size."""
    with _lock:  # the size is the whole process's
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


def call(function: Callable[[], T], stack_bytes: int) -> T:
    """What `function` returns or raises, called on a stack of this size while this thread waits."""
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
