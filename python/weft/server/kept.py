"""Answers of /v1/responses that are kept, so that the next request may go on from one."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from weft.server.errors import ApiError, quoted


@dataclass(frozen=True)
class Kept:
    """An answer, and the items of the conversation that it ends, without its own; `num_bytes` as JSON."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    num_bytes: int

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """All items, its own among them."""
        return [*self.items, *self.response["output"]]


@dataclass
class Shelf:
    """What one tenant keeps, as JSON, the oldest first."""

    kept: OrderedDict[str, bytes] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class KeptResponses:
    """The last answers of each tenant, at most so many, and so many bytes. Thread-safe."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._shelves: dict[str, Shelf] = {}

    def keep(self, tenant: str, response: dict[str, Any], items: list[dict[str, Any]]) -> None:
        """Keep one; the tenant's oldest go for it, unless it is longer than all may be."""
        content = json.dumps([response, items]).encode()
        if len(content) > self._most_bytes:
            return
        with self._lock:
            shelf = self._shelves.setdefault(tenant, Shelf())
            shelf.kept[response["id"]] = content
            shelf.num_bytes += len(content)
            while len(shelf.kept) > self._most or shelf.num_bytes > self._most_bytes:
                _, gone = shelf.kept.popitem(last=False)
                shelf.num_bytes -= len(gone)

    def get(self, tenant: str, number: str, param: str | None = None) -> Kept:
        """One that is there. Raises `ApiError`."""
        with self._lock:
            content = self._shelves.get(tenant, Shelf()).kept.get(number)
        if content is None:
            raise self._missing(number, param)
        response, items = json.loads(content)
        return Kept(response, items, len(content))

    def delete(self, tenant: str, number: str) -> None:
        """Let go of one."""
        with self._lock:
            shelf = self._shelves.get(tenant, Shelf())
            content = shelf.kept.pop(number, None)
            shelf.num_bytes -= len(content or b"")
        if content is None:
            raise self._missing(number, None)

    def _missing(self, number: str, param: str | None) -> ApiError:
        said = f"there is no response {quoted(number)}; the last {self._most} are kept"
        return ApiError(said, 404, param=param, code="response_not_found")
