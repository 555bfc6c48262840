"""Compiles WASM modules to machine code: trusted modules in this process, others in a separate process with limits.

Machine code is cached in memory, by the module's hash and wasmtime's version. weft never loads machine code
that it did not compile itself.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from weft import _core
from weft.aici import worker
from weft.aici.limits import WasmLimits
from weft.aici.source import no_wasmtime
from weft.core.awake import AwakeTimer, cpu_seconds
from weft.errors import GuideError, InterfaceError, UnavailableError
from weft.grammar.reasons import Reasons

MAX_CACHE_BYTES = 128 << 20
ENDING_S = 0.5
"""The compiler process is killed this many seconds before the guide's compile times out, so that the compile thread is
not abandoned."""


class ArtefactCache:
    """An LRU cache of machine code, up to `limit_bytes`. Thread-safe."""

    def __init__(self, limit_bytes: int = MAX_CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._artefacts: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the entry for `key`. If there is none, call `make` and store its result."""
        with self._lock:
            if key in self._artefacts:
                self._artefacts.move_to_end(key)
                return self._artefacts[key]
        # Without the lock, because it takes seconds. Two threads may compile the same module.
        artefact = make()
        with self._lock:
            if key not in self._artefacts and len(artefact) <= self.limit_bytes:
                self._artefacts[key] = artefact
                self.num_bytes += len(artefact)
                while self.num_bytes > self.limit_bytes:
                    self.num_bytes -= len(self._artefacts.popitem(last=False)[1])
        return artefact


_cache = ArtefactCache()
_refused: Reasons[tuple[str, float, int]] = Reasons()


def library_path() -> str:
    """The path of the shared library of the installed wasmtime package. Raises `InterfaceError` if there is none."""
    try:
        import wasmtime._ffi as ffi
    except ImportError as error:
        raise no_wasmtime(error) from error
    name: Any = ffi.dll._name
    return str(name)


def bind() -> None:
    """Let the extension load wasmtime and resolve its functions. Raises `InterfaceError` for an unknown version."""
    problem = _core.aici_bind_wasmtime(library_path())
    if problem:
        raise InterfaceError(f"wasmtime can't be used: {problem}; run pip install 'wasmtime>=50,<51'")


def compiled(wasm: bytes, limits: WasmLimits, trusted: bool, time_s: float) -> bytes:
    """Compile an audited module, or take it from the cache. Returns machine code. The compile of an untrusted module
    ends before `time_s` seconds have passed. Raises `GuideError` for a module that is invalid or takes too long, and
    `UnavailableError` if the machine is too busy."""
    key = hashlib.sha256(wasm).hexdigest() + version("wasmtime")
    return _cache.get(
        key,
        lambda: _compile_here(wasm) if trusted else _compile_untrusted(key, wasm, limits, time_s - ENDING_S),
    )


def _compile_here(wasm: bytes) -> bytes:
    try:
        artefact: bytes = _core.aici_compile(wasm)
    except Exception as error:
        raise GuideError(f"the WASM module does not compile: {error}") from error
    return artefact


def _compile_untrusted(key: str, wasm: bytes, limits: WasmLimits, time_s: float) -> bytes:
    """Compile in a separate process. If the module is refused, the error is cached. The same module, with any
    argument, is then refused again without another compile."""
    bounds = (key, min(limits.compile_s, round(time_s)), limits.compile_memory_bytes)
    if (reason := _refused.get(bounds)) is not None:
        raise GuideError(reason)
    try:
        return _compile_in_process(wasm, limits, time_s)
    except GuideError as error:
        _refused.put(bounds, str(error))
        raise


def _compile_in_process(wasm: bytes, limits: WasmLimits, time_s: float) -> bytes:
    """Compile in a child process, which may crash or hang. It is killed after `time_s` seconds."""
    compile_s = max(1.0, min(limits.compile_s, time_s))
    limited = [str(compile_s), str(limits.compile_memory_bytes)]
    command = [
        sys.executable, "-I", "-S", str(Path(worker.__file__)), str(_core.__file__), library_path(), *limited,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    cpu_s: list[float] = []  # the CPU seconds that the process had used, if the timer killed it

    def end() -> None:
        cpu_s.append(cpu_seconds(process.pid))
        process.kill()

    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={})
    with process, AwakeTimer(max(time_s, 0.0), end):
        artefact, errors = process.communicate(wasm)
    if cpu_s and cpu_s[0] >= time_s / 2:
        raise GuideError(_too_long(compile_s))
    if cpu_s:  # it got little CPU time, so the machine was too busy, and the module is not at fault
        raise UnavailableError(
            f"this machine is too busy to compile the WASM module: that got {cpu_s[0]:.1f} s of a CPU in {time_s:.1f} "
            "s; send it again later"
        )
    status = process.returncode
    if status == 0:
        return artefact
    if status == -signal.SIGXCPU:
        raise GuideError(_too_long(compile_s))
    if status == -signal.SIGKILL:
        raise UnavailableError(
            "the compiler of the WASM module was killed from outside, as where this machine has no memory left; send "
            "it again later"
        )
    if status == worker.REFUSED:
        raise GuideError(
            f"the WASM module does not compile: {errors.decode(errors='replace').strip()[:1000]}"
        )
    raise GuideError(
        f"the WASM module does not compile: its compiler ended with status {status}; it may need more memory "
        f"than {limits.compile_memory_bytes} bytes: simplify it, or raise WasmLimits.compile_memory_bytes"
    )


def _too_long(seconds: float) -> str:
    return (
        f"the WASM module did not compile in {seconds:g} s; simplify it, or raise WasmLimits.compile_s (at most "
        "CompileLimits.time_s)"
    )
