"""`WasmSource`, the payload of a `Guide.wasm`: the program's bytes, its argument and its limits."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from weft.aici.limits import WasmLimits
from weft.aici.sections import HEADER
from weft.errors import GuideError, InterfaceError


@dataclass(frozen=True, eq=False)
class WasmSource:
    """The checked arguments of `Guide.wasm`. `module` is WebAssembly in binary form."""

    module: bytes = field(repr=False)
    argument: str
    limits: WasmLimits
    is_trusted: bool

    @classmethod
    def read(
        cls, program: str | Path | bytes, argument: Any, limits: WasmLimits | None, is_trusted: bool
    ) -> WasmSource:
        """Read a program from a file, or from its bytes, binary or text. Raises `GuideError`, and `InterfaceError` for
        text without wasmtime."""
        limits = limits if limits is not None else WasmLimits()
        if not isinstance(limits, WasmLimits):
            raise GuideError(f"limits is a {type(limits).__name__}; give a WasmLimits")
        if isinstance(program, str | Path):
            module = _read(Path(program), limits)
        elif isinstance(program, bytes | bytearray | memoryview):
            module = bytes(program)
        else:
            raise GuideError(f"a WASM program is a path or bytes, not a {type(program).__name__}")
        return cls(_binary(module, limits), _text(argument), limits, bool(is_trusted))

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the module."""
        return hashlib.sha256(self.module).hexdigest()

    @property
    def guide_key(self) -> Hashable:
        """A cache key: equal for programs that compile to the same guide."""
        return (self.digest, self.argument, self.limits, self.is_trusted)

    def to_recording(self) -> dict[str, Any]:
        """The source as JSON data. `is_trusted` is left out, because a reader must not trust the recording."""
        module = base64.b64encode(zlib.compress(self.module, 6)).decode()
        return {"module": module, "argument": self.argument, "limits": asdict(self.limits)}

    def __str__(self) -> str:
        return f"wasm {self.digest[:16]} {self.argument}".rstrip()


def from_json(data: dict[str, Any]) -> WasmSource:
    """Read the output of `WasmSource.to_recording`, as an untrusted program. Raises `KeyError`, `TypeError`,
    `ValueError` or `zlib.error` for other data."""
    limits = WasmLimits(**data["limits"])
    packed = base64.b64decode(data["module"], validate=True)
    # Decompress at most one byte more than allowed, which is enough for `read` to refuse a decompression bomb.
    module = zlib.decompressobj().decompress(packed, limits.module_bytes + 1)
    return WasmSource.read(module, data["argument"], limits, False)


def no_wasmtime(error: ImportError) -> InterfaceError:
    """The error that says what to install, for a failed import of wasmtime."""
    # A dependency of weft itself, not of an extra, so `install_hint` does not know it.
    return InterfaceError(
        f"WASM programs need the package wasmtime, which does not load ({error}); run pip install 'wasmtime>=50,<51'"
    )


def _read(path: Path, limits: WasmLimits) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limits.module_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: the path holds a null character
        reason = getattr(error, "strerror", None) or error
        raise GuideError(f"{path}: the WASM program can't be read: {reason}") from None


def _binary(module: bytes, limits: WasmLimits) -> bytes:
    """Convert a module to binary form. Raises `GuideError`, and `InterfaceError` for text without wasmtime."""
    # The text form is never shorter than the binary, so this limit is right for both.
    if len(module) > limits.module_bytes:
        raise GuideError(
            f"the WASM program has more than the {limits.module_bytes} bytes that are allowed; strip it, or raise "
            "WasmLimits.module_bytes"
        )
    if module[:4] == HEADER[:4]:
        return module
    try:
        text = module.decode()
    except UnicodeDecodeError:
        text = ""
    if "(" not in text:
        raise GuideError("the program is neither a WASM module nor its text; give a .wasm file, or .wat text")
    try:
        import wasmtime
    except ImportError as error:
        raise no_wasmtime(error) from error
    try:
        return bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        raise GuideError(f"the WASM text does not parse: {error}") from None


def _text(argument: Any) -> str:
    """The argument as a string; anything but a string is written as JSON."""
    if isinstance(argument, str):
        return argument
    try:
        return json.dumps(argument)
    except (TypeError, ValueError) as error:
        raise GuideError(f"the argument of a WASM program is text or what JSON can hold: {error}") from None
