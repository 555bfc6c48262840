"""What must be given back: pages, slots, requests, matchers, handles, threads and memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from soak.questions import CountedMatcher
from weft import hostfunc_handles
from weft.client import Response
from weft.engine.engine import Engine
from weft.engine.kv.cache import KvSequence
from weft.engine.runner.in_flight import PromptInputs
from weft.engine.sequence import Sequence
from weft.executor import Executor

KINDS = (Sequence, Response, KvSequence, PromptInputs, Executor, Engine)


def alive() -> Counter[str]:
    """How many objects of each of KINDS there are, reachable or not yet collected."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


def resident_bytes() -> int:
    """The process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Held:
    """What there is before an executor is made; `check_end` says that there is no more when it was shut down."""

    def __init__(self) -> None:
        self.objects = alive()
        self.matchers = len(CountedMatcher.alive)
        self.handles = hostfunc_handles()
        self.threads = set(threading.enumerate())

    def _left(self, expected: Counter[str]) -> Counter[str]:
        """What there is beyond that and `expected`. A collection does nothing while another thread is at one, and a
        thread may be on its way out of a function, so what is there only for a moment does not count."""
        until = time.monotonic() + 60
        while (left := alive() - self.objects - expected) and time.monotonic() < until:
            time.sleep(0.01)
        return left

    def check_idle(self, executor: Executor) -> None:
        """All requests have ended and all their responses were taken: an executor that serves holds nothing of them."""
        engine, until = executor.client.engine, time.monotonic() + 60
        while executor.client.call(lambda: engine.has_work):
            assert time.monotonic() < until, "the engine does not come to rest"
            time.sleep(0.01)
        executor.client.call(lambda: check_engine(engine))
        assert executor.client.is_idle and executor.client.responses.is_empty
        left = self._left(Counter(Executor=1, Engine=1))
        assert not left, f"an idle executor holds {dict(left)}"
        assert len(CountedMatcher.alive) == self.matchers

    def check_end(self) -> None:
        """The executor was shut down and let go."""
        left = self._left(Counter())
        assert not left, f"left behind: {dict(left)}"
        assert len(CountedMatcher.alive) == self.matchers
        assert hostfunc_handles() == self.handles
        until = time.monotonic() + 60  # a compile's timer ends by itself
        while more := set(threading.enumerate()) - self.threads:
            assert time.monotonic() < until, f"threads left behind: {more}"
            time.sleep(0.01)


def check_engine(engine: Any) -> None:
    """An engine without work holds no page, slot or request."""
    engine.kv.check()
    usage = engine.kv.usage()
    assert (usage.used_pages, usage.free_pages) == (0, usage.max_pages)
    assert sorted(engine.scheduler.capacity.free_slots) == list(range(engine.config.max_batch))
    assert not (engine.running or engine.output.in_flight or engine.num_waiting)
    assert not (engine.scheduler.waiting.deadlines or engine.scheduler.waiting.preempted)
