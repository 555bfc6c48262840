"""Python functions as nodes of a stream, eager or captured. See docs/hostfunc.md for the rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec

from weft import _core
from weft.errors import HostFuncError, InputError
from weft.runtime.current import current

P = ParamSpec("P")

WATCHDOG_SIGNAL = _core.WATCHDOG_SIGNAL


def launch_hostfunc(fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> int | None:
    """Launch `fn(*args, **kwargs)` on the current stream, in order with its other work.

    Arguments are not copied: a number keeps its present value, but a tensor has the values of the time when the
    function runs. The function's result is dropped. Its exception is raised by the next `check`, synchronize, launch or
    replay.

    During a capture this returns a handle. The function runs at every replay, and its payload is freed with the graph,
    or earlier by `free_hostfunc_user_data`. Otherwise it returns None, and the payload is freed after the function has
    run.

    Raises `HostFuncError` for a coroutine or generator function, because a call would not run its body.
    """
    _check_runs(fn)
    return _launch(fn, args, kwargs)


def hostfunc(fn: Callable[P, object]) -> Callable[P, int | None]:
    """Decorate a function or method so that calling it launches it with `launch_hostfunc`.

    Raises `HostFuncError` for a coroutine or generator function, because a call would not run its body.
    """
    _check_runs(fn)

    @functools.wraps(fn)
    def launch(*args: P.args, **kwargs: P.kwargs) -> int | None:
        return _launch(fn, args, kwargs)

    return launch


def _launch(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> int | None:
    now = current()
    return _core.launch_hostfunc(now.driver, now.handle, True, fn, args, kwargs)


_LAZY: dict[str, Callable[[object], bool]] = {
    "a coroutine function": inspect.iscoroutinefunction,
    "a generator function": inspect.isgeneratorfunction,
    "an asynchronous generator function": inspect.isasyncgenfunction,
}


def _check_runs(fn: Callable[..., object]) -> None:
    """Raise `HostFuncError` for a function whose call only makes a coroutine or generator."""
    for called in (fn, type(fn).__call__):
        for what, is_lazy in _LAZY.items():
            if is_lazy(called):
                raise HostFuncError(
                    f"{getattr(fn, '__qualname__', type(fn).__qualname__)} is {what}: calling it runs nothing of it. "
                    "Give a plain function; it may hand work to an event loop with asyncio.run_coroutine_threadsafe"
                )


def free_hostfunc_user_data(handle: int) -> None:
    """Free a payload early. A later replay of its graph raises HostFuncError instead of calling the function.

    Raises ValueError for a handle that is unknown or freed, or whose graph was destroyed.
    """
    _core.free_hostfunc_user_data(handle)


def hostfunc_handles() -> list[int]:
    """Handles of the live payloads, in order of launch."""
    _core.drain()
    return _core.hostfunc_handles()


def check() -> None:
    """Raise the first exception of a callback since the last check. Later exceptions become notes on it."""
    _core.check(None)


def set_watchdog(seconds: float | None, signal: int = WATCHDOG_SIGNAL) -> None:
    """Report Python callbacks that wait for the GIL for longer than `seconds`; None switches reports off.

    A report goes to stderr: the callback's name, then all Python stacks, by faulthandler on `signal` (0: no stacks).
    It is repeated each time the wait doubles. The default limit is 10 seconds. Raises `InputError` for a limit that
    is not positive.
    """
    if seconds is not None and seconds <= 0:
        raise InputError(f"the limit is a positive number of seconds or None, not {seconds}")
    _core.set_watchdog(seconds or 0.0, signal)
