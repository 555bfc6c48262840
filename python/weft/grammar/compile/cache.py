"""The caches of a guide compiler: compiled guides, up to a number of bytes, and recent refusals."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Hashable

from weft.errors import brief
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.parts import digest
from weft.grammar.guide import Guide
from weft.grammar.reasons import Reasons

_log = logging.getLogger(__name__)


class GuideCache:
    """An LRU cache of compiled guides by `Guide.key`, up to `limit_bytes`. Not thread-safe: the owner's lock guards it.

    `num_hits` and `num_misses` count the calls of `get`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.num_bytes = 0
        self.num_hits = 0
        self.num_misses = 0
        self._entries: OrderedDict[Hashable, tuple[CompiledGuide, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> CompiledGuide | None:
        """Return the entry and mark it as most recently used; None if there is none."""
        if key not in self._entries:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, compiled: CompiledGuide, measured_bytes: int = 0) -> None:
        """Add an entry, unless it alone exceeds the limit. Its size is that of its source text, plus the
        larger of `compiled.memory_bytes` and `measured_bytes`."""
        size = max(compiled.memory_bytes, measured_bytes) + sys.getsizeof(compiled.guide.source)
        if key in self._entries:  # the same guide again; its size may have changed
            self.num_bytes -= self._entries.pop(key)[1]
        if size > self.limit_bytes:
            return
        self._entries[key] = (compiled, size)
        self.num_bytes += size
        while self.num_bytes > self.limit_bytes:
            self.num_bytes -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop all entries. `num_hits` and `num_misses` stay."""
        self._entries.clear()
        self.num_bytes = 0


class Refusals:
    """The reasons of recent refusals. For `keep_s` seconds the same guide is refused again without a compile."""

    def __init__(self, limit: int = 1024, keep_s: float = 300.0) -> None:
        self._reasons: Reasons[str] = Reasons(limit, keep_s)

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, guide: Guide, reason: str) -> None:
        """Log a refusal and remember it. A guide with a `payload` is not remembered: it has no digest."""
        _log.warning("guide (%s) refused: %s", guide.kind, brief(reason))
        if guide.payload is None:
            self._reasons.put(digest(guide), reason)

    def get(self, guide: Guide) -> str | None:
        """Return why a guide was refused, or None."""
        if guide.payload is not None or not len(self._reasons):
            return None
        return self._reasons.get(digest(guide))
