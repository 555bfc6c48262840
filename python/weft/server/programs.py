"""Programs that clients upload: WebAssembly modules by their SHA-256, and tags for them, each tenant's own."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

from weft.errors import InputError
from weft.grammar.guide import Guide
from weft.server.errors import ApiError, quoted

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


F = TypeVar("F", bound=Callable[..., Any])


def _locked(method: F) -> F:
    """One call at a time."""

    @wraps(method)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **named)

    return cast("F", called)


@dataclass(frozen=True)
class ProgramLimits:
    """What a tenant may keep: so many modules, of so many bytes each and together, and so many tags. Programs are
    untrusted unless they are said to be `trusted`."""

    max_modules: int = 64
    max_module_bytes: int = 16 << 20
    max_bytes: int = 64 << 20
    max_tags: int = 256
    trusted: bool = False

    def __post_init__(self) -> None:
        if self.max_module_bytes <= 0:
            raise InputError(f"programs.max_module_bytes is {self.max_module_bytes}; it must be above 0")
        for name in ("max_modules", "max_bytes", "max_tags"):
            if getattr(self, name) < 0:
                raise InputError(f"programs.{name} is {getattr(self, name)}; it must be 0 or more")


@dataclass
class Shelf:
    """What one tenant keeps."""

    modules: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Of all modules."""
        return sum(map(len, self.modules.values()))


class Programs:
    """Everybody's programs. Thread-safe."""

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._shelves: dict[str, Shelf] = {}
        self._own: dict[str, bytes] = {}
        self._lock = threading.RLock()

    def upload(self, tenant: str, module: bytes) -> dict[str, Any]:
        """Keep a module, binary or text; what AICI's servers answer. Raises `GuideError` for what is none, and
        `ApiError` where there is no room."""
        began = time.perf_counter()
        Guide.wasm(module)  # its form; it is compiled when a request needs it, apart from weft's process
        number = hashlib.sha256(module).hexdigest()
        with self._lock:
            self._put(self._shelves.setdefault(tenant, Shelf()), number, module)
        spent = int((time.perf_counter() - began) * 1000)
        return {"module_id": number, "wasm_size": len(module), "time": spent}

    def _put(self, shelf: Shelf, number: str, module: bytes) -> None:
        if number not in shelf.modules:
            limits = self._limits
            if len(shelf.modules) >= limits.max_modules or shelf.num_bytes + len(module) > limits.max_bytes:
                raise ApiError(
                    f"{len(shelf.modules)} modules of {shelf.num_bytes} bytes are kept; at most {limits.max_modules} "
                    f"of {limits.max_bytes} bytes together may be: delete one",
                    413,
                    code="too_many_programs",
                )
            shelf.modules[number] = module

    @_locked
    def tag(self, tenant: str, number: str, tags: list[str]) -> dict[str, Any]:
        """Name a module. A tag that there is moves."""
        shelf = self._shelves.setdefault(tenant, Shelf())
        number = self._number(shelf, number)
        for tag in tags:
            if not TAG.fullmatch(tag):
                raise ApiError(
                    f"{quoted(tag)} is no tag; it has letters, digits, '.', '_' and '-'", param="tags"
                )
        if len({*shelf.tags, *tags}) > self._limits.max_tags:
            raise ApiError(f"at most {self._limits.max_tags} tags are kept; delete one", 413, param="tags")
        for tag in tags:
            shelf.tags[tag] = {
                "tag": tag,
                "module_id": number,
                "updated_at": int(time.time()),
                "wasm_size": len(shelf.modules[number]),
            }
        return {"tags": [shelf.tags[tag] for tag in tags]}

    @_locked
    def list(self, tenant: str) -> dict[str, Any]:
        """What there is."""
        shelf = self._shelves.get(tenant, Shelf())
        modules = [
            {"module_id": number, "wasm_size": len(module)} for number, module in shelf.modules.items()
        ]
        return {"tags": [*shelf.tags.values()], "modules": modules, "server": sorted(self._own)}

    @_locked
    def delete(self, tenant: str, name: str) -> dict[str, Any]:
        """Let go of a tag; or of a module, with its tags."""
        shelf = self._shelves.get(tenant, Shelf())
        if name in shelf.tags:
            del shelf.tags[name]
        else:
            number = self._number(shelf, name)
            del shelf.modules[number]
            shelf.tags = {tag: one for tag, one in shelf.tags.items() if one["module_id"] != number}
        return {"deleted": name}

    def guide(self, tenant: str, name: str, argument: str) -> Guide:
        """The guide of a program, by its tag or its number. Its form is read again, which takes its time."""
        return Guide.wasm(self._module(tenant, name), argument, trusted=self._limits.trusted)

    @_locked
    def _module(self, tenant: str, name: str) -> bytes:
        shelf = self._shelves.get(tenant, Shelf())
        if name in self._own and name not in shelf.tags:
            return self._own[name]
        number = shelf.tags[name]["module_id"] if name in shelf.tags else self._number(shelf, name)
        return shelf.modules[number]

    def add(self, name: str, module: bytes) -> None:
        """Keep a program of the server's own, which every tenant may name. Raises `GuideError`."""
        Guide.wasm(module)
        self._own[name] = module

    def _number(self, shelf: Shelf, number: str) -> str:
        if number not in shelf.modules:
            raise ApiError(
                f"there is no program {quoted(number)}; upload it to /v1/controllers",
                404,
                code="program_not_found",
            )
        return number
