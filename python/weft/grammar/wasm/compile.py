"""Modules to machine code: in this process where the module is trusted, else in a separate process with limits.

What comes out is kept by the content that went in, the extension and wasmtime's version. Machine code that came from
anywhere else is never loaded.
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
from weft.awake import AwakeTimer
from weft.errors import GuideError, InterfaceError
from weft.grammar.wasm import worker
from weft.grammar.wasm_limits import WasmLimits

MAX_KEPT_BYTES = 128 << 20
# Starting the interpreter and loading the extension, on a busy machine.
GRACE_S = 10.0


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


def compiled(wasm: bytes, limits: WasmLimits, trusted: bool) -> bytes:
    """The machine code of an audited module. Raises `GuideError` for one that is not valid, or that takes too long."""
    key = hashlib.sha256(wasm).hexdigest() + version("wasmtime")
    return _cache.get(key, lambda: _in_process(wasm) if trusted else _apart(wasm, limits))


def _in_process(wasm: bytes) -> bytes:
    try:
        artefact: bytes = _core.wasm_compile(wasm)
    except Exception as error:
        raise GuideError(f"the WASM module does not compile: {error}") from error
    return artefact


def _apart(wasm: bytes, limits: WasmLimits) -> bytes:
    """Compile in a separate process, which may crash or hang."""
    limited = [str(limits.compile_s), str(limits.compile_memory_bytes)]
    command = [
        sys.executable, "-I", "-S", str(Path(worker.__file__)), str(_core.__file__), library_path(), *limited,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}
    )
    with process, AwakeTimer(limits.compile_s + GRACE_S, process.kill):
        code, said = process.communicate(wasm)
    status = process.returncode
    if status == 0:
        return code
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise GuideError(_too_long(limits))
    if status == worker.REFUSED:
        reason = said.decode(errors="replace").strip()
        raise GuideError(f"the WASM module does not compile: {reason[:1000]}")
    raise GuideError(
        f"the WASM module does not compile: its compiler ended with status {status}; it may need more memory "
        f"than {limits.compile_memory_bytes} bytes: simplify it, or raise WasmLimits.compile_memory_bytes"
    )


def _too_long(limits: WasmLimits) -> str:
    return f"the WASM module did not compile in {limits.compile_s:g} s; simplify it, or raise WasmLimits.compile_s"
