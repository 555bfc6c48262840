"""Python functions as nodes of a stream, eager or captured. The rules are in docs/hostfunc.md."""

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

    Arguments are kept as they are: numbers are frozen now, tensors are seen as they are when the function
    runs. What it returns is dropped; what it raises is raised by the next `check`, synchronize, launch or
    replay.

    In capture, returns a handle: the function runs at every replay and its payload goes with the graph,
    or earlier with `free_hostfunc_user_data`. Otherwise returns None: the payload is freed when the
    function has run.

    Raises `HostFuncError` for a coroutine or generator function, of which a call would run nothing.
    """
    _check_runs(fn)
    return _launch(fn, args, kwargs)


def hostfunc(fn: Callable[P, object]) -> Callable[P, int | None]:
    """Decorate a function or method, so that a call of it is `launch_hostfunc` of it. Raises `HostFuncError` for a
    coroutine or generator function, of which a call would run nothing.
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
    """Raise `HostFuncError` for what only makes an object that would have to be run."""
    for called in (fn, type(fn).__call__):
        for what, is_lazy in _LAZY.items():
            if is_lazy(called):
                raise HostFuncError(
                    f"{getattr(fn, '__qualname__', type(fn).__qualname__)} is {what}: calling it runs nothing of it. "
                    "Give a plain function; it may hand work to an event loop with asyncio.run_coroutine_threadsafe"
                )


def free_hostfunc_user_data(handle: int) -> None:
    """Free a payload early. Where its graph still lives, a later replay raises HostFuncError in its place.

    Raises ValueError for a handle that is unknown, was freed, or whose graph is gone.
    """
    _core.free_hostfunc_user_data(handle)


def hostfunc_handles() -> list[int]:
    """Handles of the payloads that live, in order of launch."""
    _core.drain()
    return _core.hostfunc_handles()


def check() -> None:
    """Raise the first exception that a callback raised since the last check, the others as notes on it."""
    _core.check(None)


def set_watchdog(seconds: float | None, signal: int = WATCHDOG_SIGNAL) -> None:
    """Report a Python callback that waits for the GIL for longer than `seconds`; None for never.

    The report goes to stderr: the callback's name, then every Python stack, by faulthandler on `signal`.
    It is repeated when the wait has doubled. Without a call the limit is 10 seconds.
    """
    if seconds is not None and seconds <= 0:
        raise InputError(f"the limit is a positive number of seconds or None, not {seconds}")
    _core.set_watchdog(seconds or 0.0, signal)
