"""Stores the tenants' data: uploaded WebAssembly programs, and the responses of /v1/responses.

A tenant's data is its shelf. Each tenant sees only its own shelf, and each shelf has limits. `Programs` and
`KeptResponses` are thread-safe.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from weft.grammar.guide import Guide
from weft.server.errors import ApiError, quoted
from weft.server.settings import ProgramSettings

# -- programs

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass
class ProgramShelf:
    """A tenant's programs: modules by their SHA-256, and tags, which are names for modules."""

    modules: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all modules."""
        return sum(map(len, self.modules.values()))


class Programs:
    """The programs of all tenants, and shared programs, which every tenant may use by name."""

    def __init__(self, settings: ProgramSettings) -> None:
        self._settings = settings
        self._shelves: dict[str, ProgramShelf] = {}
        self._shared: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def share(self, name: str, module: bytes) -> None:
        """Add a shared program. Raises `GuideError` for an invalid module."""
        Guide.wasm(module)
        self._shared[name] = module

    def upload(self, tenant: str, module: bytes) -> dict[str, Any]:
        """Store a module in binary or text form. Returns a response in AICI's format. Raises `GuideError` for
        anything else, and `ApiError` if the shelf is full."""
        began = time.perf_counter()
        # This checks only the format. The module is compiled in another process when a request needs it.
        Guide.wasm(module)
        module_id = hashlib.sha256(module).hexdigest()
        with self._lock:
            self._put(self._shelves.setdefault(tenant, ProgramShelf()), module_id, module)
        spent_ms = int((time.perf_counter() - began) * 1000)
        return {"module_id": module_id, "wasm_size": len(module), "time": spent_ms}

    def _put(self, shelf: ProgramShelf, module_id: str, module: bytes) -> None:
        if module_id not in shelf.modules:
            settings = self._settings
            if (
                len(shelf.modules) >= settings.max_modules
                or shelf.num_bytes + len(module) > settings.max_bytes
            ):
                raise ApiError(
                    f"{len(shelf.modules)} modules of {shelf.num_bytes} bytes are kept; at most {settings.max_modules} "
                    f"of {settings.max_bytes} bytes together may be: delete one",
                    413,
                    code="too_many_programs",
                )
            shelf.modules[module_id] = module

    def tag(self, tenant: str, module_id: str, tags: list[str]) -> dict[str, Any]:
        """Attach tags to a module. Existing tags with these names move to it. Raises `ApiError` for an unknown module,
        an invalid tag or too many tags."""
        with self._lock:
            shelf = self._shelves.setdefault(tenant, ProgramShelf())
            _check_module(shelf, module_id)
            for tag in tags:
                if not TAG.fullmatch(tag):
                    raise ApiError(
                        f"{quoted(tag)} is no tag; it has letters, digits, '.', '_' and '-'", param="tags"
                    )
            if len({*shelf.tags, *tags}) > self._settings.max_tags:
                raise ApiError(
                    f"at most {self._settings.max_tags} tags are kept; delete one", 413, param="tags"
                )
            for tag in tags:
                shelf.tags[tag] = {
                    "tag": tag,
                    "module_id": module_id,
                    "updated_at": int(time.time()),
                    "wasm_size": len(shelf.modules[module_id]),
                }
            return {"tags": [shelf.tags[tag] for tag in tags]}

    def list(self, tenant: str) -> dict[str, Any]:
        """List a tenant's tags and modules, and the names of the shared programs."""
        with self._lock:
            shelf = self._shelves.get(tenant, ProgramShelf())
            modules = [
                {"module_id": module_id, "wasm_size": len(module)}
                for module_id, module in shelf.modules.items()
            ]
            return {"tags": [*shelf.tags.values()], "modules": modules, "server": sorted(self._shared)}

    def delete(self, tenant: str, name: str) -> dict[str, Any]:
        """Delete a tag, or a module with all its tags. Raises `ApiError` if there is neither."""
        with self._lock:
            shelf = self._shelves.get(tenant, ProgramShelf())
            if name in shelf.tags:
                del shelf.tags[name]
            else:
                _check_module(shelf, name)
                del shelf.modules[name]
                shelf.tags = {tag: entry for tag, entry in shelf.tags.items() if entry["module_id"] != name}
            return {"deleted": name}

    def guide(self, tenant: str, name: str, argument: str) -> Guide:
        """Return a guide that runs a program, found by its tag, its module id, or its shared name. This parses the
        module again, which is slow for a large one. Raises `ApiError` if there is no such program."""
        return Guide.wasm(self._module(tenant, name), argument, trusted=self._settings.trusted)

    def _module(self, tenant: str, name: str) -> bytes:
        with self._lock:
            shelf = self._shelves.get(tenant, ProgramShelf())
            # A tenant's own tag hides a shared program of the same name.
            if name in self._shared and name not in shelf.tags:
                return self._shared[name]
            module_id = shelf.tags[name]["module_id"] if name in shelf.tags else name
            _check_module(shelf, module_id)
            return shelf.modules[module_id]


def _check_module(shelf: ProgramShelf, module_id: str) -> None:
    if module_id not in shelf.modules:
        raise ApiError(
            f"there is no program {quoted(module_id)}; upload it to /v1/controllers",
            404,
            code="program_not_found",
        )


# -- responses


@dataclass(frozen=True)
class Kept:
    """A stored response, and the conversation items before it. `num_bytes` is the size of both as JSON."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    num_bytes: int

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items of the conversation, including those of the response."""
        return [*self.items, *self.response["output"]]


@dataclass
class ResponseShelf:
    """A tenant's responses by id, oldest first. They are stored as JSON."""

    kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class KeptResponses:
    """The latest responses of each tenant: at most `max_responses`, with at most `max_bytes` together."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._lock = threading.Lock()
        self._shelves: dict[str, ResponseShelf] = {}

    def keep(self, tenant: str, response: dict[str, Any], items: list[dict[str, Any]]) -> None:
        """Store a response, and evict the tenant's oldest ones if necessary. A response above `max_bytes` is not
        stored."""
        content = json.dumps([response, items]).encode()
        if len(content) > self._max_bytes:
            return
        with self._lock:
            shelf = self._shelves.setdefault(tenant, ResponseShelf())
            shelf.kept[response["id"]] = content
            shelf.num_bytes += len(content)
            while len(shelf.kept) > self._max_responses or shelf.num_bytes > self._max_bytes:
                _, oldest = shelf.kept.popitem(last=False)
                shelf.num_bytes -= len(oldest)

    def get(self, tenant: str, response_id: str, param: str | None = None) -> Kept:
        """Return a response. If there is none, raises `ApiError`, which names the field `param`."""
        with self._lock:
            content = self._shelves.get(tenant, ResponseShelf()).kept.get(response_id)
        if content is None:
            raise self._missing(response_id, param)
        response, items = json.loads(content)
        return Kept(response, items, len(content))

    def delete(self, tenant: str, response_id: str) -> None:
        """Delete a response. Raises `ApiError` if there is none."""
        with self._lock:
            shelf = self._shelves.get(tenant, ResponseShelf())
            content = shelf.kept.pop(response_id, None)
            shelf.num_bytes -= len(content or b"")
        if content is None:
            raise self._missing(response_id, None)

    def _missing(self, response_id: str, param: str | None) -> ApiError:
        message = f"there is no response {quoted(response_id)}; the last {self._max_responses} are kept"
        return ApiError(message, 404, param=param, code="response_not_found")
