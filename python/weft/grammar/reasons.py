"""A cache of refusals: a guide or WASM module that was refused a short while ago is refused again without a compile."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Reasons(Generic[T]):
    """The reasons of the last `limit` refusals, each kept for `keep_s` seconds. Thread-safe."""

    def __init__(self, limit: int = 1024, keep_s: float = 300.0) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._reasons: OrderedDict[T, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, key: T, reason: str) -> None:
        """Remember why `key` was refused."""
        with self._lock:
            self._reasons.pop(key, None)
            self._reasons[key] = (reason, time.monotonic() + self._keep_s)
            while len(self._reasons) > self._limit:
                self._reasons.popitem(last=False)

    def get(self, key: T) -> str | None:
        """Return why `key` was refused; None if it was not, or if that is too long ago."""
        with self._lock:
            reason, until = self._reasons.get(key, ("", 0.0))
        return reason if time.monotonic() < until else None
