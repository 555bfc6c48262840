"""Modules to machine code: in this process where the module is trusted, else in a separate process with limits.

What comes out is kept by the content that went in, the extension and wasmtime's version. Machine code that came from
anywhere else is never loaded.
"""

from __future__ import annotations

import hashlib
import os
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
from weft.core.awake import AwakeTimer
from weft.errors import GuideError, InterfaceError, UnavailableError
from weft.grammar.reasons import Reasons
from weft.grammar.wasm_limits import WasmLimits

MAX_KEPT_BYTES = 128 << 20
ENDING_S = 0.5
"""So long before its request is given up a compiler is killed: its thread is free when that is."""


class ArtefactCache:
    """Compiled modules, the least recently used dropped beyond `limit_bytes`."""

    def __init__(self, limit_bytes: int = MAX_KEPT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The entry, which `make` makes where there is none."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            if key not in self._kept and len(made) <= self.limit_bytes:
                self._kept[key] = made
                self.num_bytes += len(made)
                while self.num_bytes > self.limit_bytes:
                    self.num_bytes -= len(self._kept.popitem(last=False)[1])
        return made


_cache = ArtefactCache()
_refused: Reasons[tuple[str, float, int]] = Reasons()


def library_path() -> str:
    """Where the installed wasmtime's library is. Raises `InterfaceError` where there is none."""
    try:
        import wasmtime._ffi as ffi
    except ImportError as error:
        raise InterfaceError(
            f"WASM programs need the package wasmtime, which does not load ({error}); run pip install "
            "'wasmtime>=50,<51'"
        ) from error
    name: Any = ffi.dll._name
    return str(name)


def bind() -> None:
    """Make wasmtime's functions known to the extension. Raises `InterfaceError` where they are not those of weft's
    version."""
    problem = _core.wasm_bind(library_path())
    if problem:
        raise InterfaceError(f"wasmtime can't be used: {problem}; run pip install 'wasmtime>=50,<51'")


def compiled(wasm: bytes, limits: WasmLimits, trusted: bool, time_s: float) -> bytes:
    """The machine code of an audited module. Raises `GuideError` for one that is not valid, or that takes too long, and
    `UnavailableError` where it did not get a CPU within `time_s` seconds."""
    key = hashlib.sha256(wasm).hexdigest() + version("wasmtime")
    return _cache.get(
        key, lambda: _in_process(wasm) if trusted else _apart(key, wasm, limits, time_s - ENDING_S)
    )


def _in_process(wasm: bytes) -> bytes:
    try:
        artefact: bytes = _core.wasm_compile(wasm)
    except Exception as error:
        raise GuideError(f"the WASM module does not compile: {error}") from error
    return artefact


def _apart(key: str, wasm: bytes, limits: WasmLimits, time_s: float) -> bytes:
    """Compile in a separate process, which may crash or hang; it is killed after `time_s`. Why a module was refused is
    remembered, so that it costs nothing under another name or with another argument."""
    bounds = (key, min(limits.compile_s, round(time_s)), limits.compile_memory_bytes)
    if (reason := _refused.get(bounds)) is not None:
        raise GuideError(reason)
    try:
        return _compiled_apart(wasm, limits, time_s)
    except GuideError as error:
        _refused.put(bounds, str(error))
        raise


def _compiled_apart(wasm: bytes, limits: WasmLimits, time_s: float) -> bytes:
    compile_s = max(1.0, min(limits.compile_s, time_s))
    limited = [str(compile_s), str(limits.compile_memory_bytes)]
    command = [
        sys.executable, "-I", "-S", str(Path(worker.__file__)), str(_core.__file__), library_path(), *limited,
    ]  # fmt: skip
    pipe = subprocess.PIPE
    taken: list[float] = []

    def end() -> None:
        taken.append(cpu_seconds(process.pid))
        process.kill()

    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={})
    with process, AwakeTimer(max(time_s, 0.0), end):
        made, said = process.communicate(wasm)
    if taken and taken[0] >= time_s / 2:
        raise GuideError(_too_long(compile_s))
    if taken:
        raise UnavailableError(
            f"this machine is too busy to compile the WASM module: that got {taken[0]:.1f} s of a CPU in {time_s:.1f} "
            "s; send it again later"
        )
    status = process.returncode
    if status == 0:
        return made
    if status == -signal.SIGXCPU:
        raise GuideError(_too_long(compile_s))
    if status == -signal.SIGKILL:
        raise UnavailableError(
            "the compiler of the WASM module was killed from outside, as where this machine has no memory left; send "
            "it again later"
        )
    if status == worker.REFUSED:
        raise GuideError(f"the WASM module does not compile: {said.decode(errors='replace').strip()[:1000]}")
    raise GuideError(
        f"the WASM module does not compile: its compiler ended with status {status}; it may need more memory "
        f"than {limits.compile_memory_bytes} bytes: simplify it, or raise WasmLimits.compile_memory_bytes"
    )


def cpu_seconds(pid: int) -> float:
    """Seconds of a CPU that a process has taken."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, numbers[11:13])) / os.sysconf("SC_CLK_TCK")


def _too_long(seconds: float) -> str:
    return (
        f"the WASM module did not compile in {seconds:g} s; simplify it, or raise WasmLimits.compile_s (at most "
        "CompileLimits.time_s)"
    )
