"""The memory of a compiler: compiled guides, within a number of bytes, and why others were refused."""

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
    """Compiled guides by key. Beyond `limit_bytes` the least recently used are dropped. The owner's lock guards it.

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
        """Return the entry, which becomes the most recently used, or None."""
        if key not in self._entries:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, compiled: CompiledGuide, measured_bytes: int = 0) -> None:
        """Keep an entry, unless it alone exceeds the limit. Its size is that of its source text plus
        `compiled.memory_bytes`, or plus `measured_bytes` where that is larger."""
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
        """Drop everything."""
        self._entries.clear()
        self.num_bytes = 0


class Refusals:
    """Why guides were refused. A guide that is sent again is refused at once, for `keep_s` seconds."""

    def __init__(self, limit: int = 1024, keep_s: float = 300.0) -> None:
        self._reasons: Reasons[str] = Reasons(limit, keep_s)

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, guide: Guide, reason: str) -> None:
        """Log a refusal and remember it, unless the guide holds an object of the program, which has no digest."""
        _log.warning("guide (%s) refused: %s", guide.kind, brief(reason))
        if guide.payload is None:
            self._reasons.put(digest(guide), reason)

    def get(self, guide: Guide) -> str | None:
        """Return why a guide was refused, or None."""
        if guide.payload is not None or not len(self._reasons):
            return None
        return self._reasons.get(digest(guide))
