"""Compiling guides beside everything else: a pool of threads, limits, and a bounded cache.

A compile that outlives its time limit fails its own guide. XGrammar can't be stopped, so its thread is left
to finish alone and another takes its place; while `max_abandoned` of them are at it, new guides are refused.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

from weft import registry
from weft.errors import GuideError
from weft.grammar.base import Backend, CompiledGuide, Opening
from weft.grammar.closing import prepare_closing
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits, check_memory, check_size, check_text
from weft.grammar.starts import Starts
from weft.grammar.tokenizer import Vocabulary


class GuideCache:
    """Compiled guides, the least recently used dropped beyond `limit_bytes`. Its owner's lock guards it.

    `num_hits` and `num_misses` count what `get` was asked for.
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
        """The entry, now the most recently used."""
        if key not in self._entries:
            self.num_misses += 1
            return None
        self.num_hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, compiled: CompiledGuide) -> None:
        """Keep an entry, unless it alone is beyond the limit."""
        size = compiled.memory_bytes
        if key in self._entries:  # it may have grown
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


@dataclass(eq=False)
class _Job:
    guide: Guide
    future: Future[CompiledGuide]
    compiled: CompiledGuide | None = None  # its ends are to be worked out
    timer: threading.Timer | None = None


_open: weakref.WeakSet[GuideCompiler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Native objects in the caches go before their types do."""
    for compiler in list(_open):
        compiler.close()


class GuideCompiler:
    """Compiles guides for one vocabulary, in `workers` threads of its own.

    `backend` is a name of the registry's grammars; `"auto"` takes XGrammar, and LLGuidance for what XGrammar can't
    express. Guides with the same content are compiled once, while the
    cache of `cache_limit_bytes` holds them. `untrusted`: guides come from strangers; what XGrammar is to compile is
    tried in another process first, and the default `limits` are `CompileLimits.untrusted()`. `close` when done, or use
    it with `with`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        backend: str = "auto",
        workers: int = 2,
        limits: CompileLimits | None = None,
        cache_limit_bytes: int = 256 << 20,
        untrusted: bool = False,
    ) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or (CompileLimits.untrusted() if untrusted else CompileLimits())
        self.cache = GuideCache(cache_limit_bytes)
        self.num_abandoned = 0
        self._backend: Backend = registry.load("grammars", backend)(
            vocabulary, limits=self.limits, untrusted=untrusted
        )
        self._starts = Starts(workers)
        self._workers = workers
        self._lock = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._in_flight: dict[Hashable, Future[CompiledGuide]] = {}
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        _open.add(self)

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile and wait. Raises `GuideError`."""
        return self.submit(guide).result()

    def submit(self, guide: Guide) -> Future[CompiledGuide]:
        """Start compiling; the future's exception is a `GuideError` where that fails. Shared by equal
        guides, so that it can't be cancelled.
        """
        future: Future[CompiledGuide] = Future()
        future.set_running_or_notify_cancel()  # nobody may cancel what others wait for, too
        try:
            check_text(guide, self.limits)
        except GuideError as error:
            future.set_exception(error)
            return future
        with self._lock:
            if self._closed:
                raise GuideError("the compiler is closed")
            cached = self.cache.get(guide.key) if guide.key is not None else None
            if cached is not None:
                future.set_result(cached)
                return future
            if guide.key is not None and guide.key in self._in_flight:
                return self._in_flight[guide.key]
            if self.num_abandoned >= self.limits.max_abandoned:
                future.set_exception(self._too_many())
                return future
            if guide.key is not None:
                self._in_flight[guide.key] = future
            self._queue(_Job(guide, future))
        return future

    def submit_closing(self, compiled: Future[CompiledGuide]) -> Future[CompiledGuide]:
        """Work out how answers end, for `on_length="close"`, behind what `submit` gave. The future's exception is a
        `GuideError` where that can't be known.
        """
        future: Future[CompiledGuide] = Future()
        future.set_running_or_notify_cancel()

        def go_on(done: Future[CompiledGuide]) -> None:
            error = done.exception()
            with self._lock:
                if error is None and self._closed:
                    error = GuideError("the compiler was closed")
                if error is None and self.num_abandoned >= self.limits.max_abandoned:
                    error = self._too_many()
                if error is None:
                    self._queue(_Job(done.result().guide, future, done.result()))
            if error is not None:
                future.set_exception(error)

        compiled.add_done_callback(go_on)
        return future

    def check_size(self, text: str) -> None:
        """Raises `GuideError` for a guide's text that is beyond the limits: before anything is made of it."""
        check_size(text, self.limits)

    def open(
        self, compiled: Future[CompiledGuide], opening: Opening, count: int = 1
    ) -> Future[CompiledGuide]:
        """What was submitted, for the `count` sequences of one request: where its matchers take long to begin, they
        have begun when the future is done, and its exception may be that they failed."""
        return self._starts.open(compiled, opening, count)

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile on this thread, without limits or cache: what the compiler's threads do, and for guides within
        guides. Raises `GuideError`."""
        if guide.kind in registry.GUIDES:
            compiled: CompiledGuide = registry.load("guides", guide.kind)(guide, self)
            return compiled
        check_text(guide, self.limits)
        return self._backend.compile(guide)

    def close(self) -> None:
        """Fail what waits, end the threads, let go of the cache. A compile at work is left to finish
        alone.
        """
        with self._lock:
            self._closed = True
            waiting, self._jobs = list(self._jobs), deque()
            self._in_flight.clear()
            self.cache.clear()
            self._lock.notify_all()
            threads = list(self._threads)
        self._starts.close()
        for job in waiting:
            job.future.set_exception(GuideError("the compiler was closed"))
        self._backend.close()
        for thread in threads:
            if thread is not threading.current_thread():  # a collection there may drop the owner
                thread.join(timeout=1.0)

    def __enter__(self) -> GuideCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _too_many(self) -> GuideError:
        return GuideError(f"{self.num_abandoned} compiles are past their time limit; try again later")

    def _queue(self, job: _Job) -> None:
        self._jobs.append(job)
        if self._idle < len(self._jobs) and len(self._threads) < self._workers:
            self._start_thread()
        self._lock.notify()

    def _start_thread(self) -> None:
        # A daemon: a compile that can't be stopped must not hold up the end of the program.
        thread = threading.Thread(target=self._work, name="weft-compile", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        with suppress(Exception):  # what hinders it is met again, and told, by the guides to compile
            self._backend.prepare()
        while True:
            with self._lock:
                self._idle += 1
                while not self._jobs and not self._closed:
                    self._lock.wait()
                self._idle -= 1
                if not self._jobs:
                    self._threads.discard(me)
                    return
                job = self._jobs.popleft()
                job.timer = threading.Timer(self.limits.time_s, self._abandon, (job, me))
                job.timer.daemon = True
                job.timer.start()
            self._compile(job)
            with self._lock:
                if me not in self._threads:
                    self.num_abandoned -= 1
                    return

    def _compile(self, job: _Job) -> None:
        try:
            known, error = job.compiled, None
            compiled = self.compile_part(job.guide) if known is None else prepare_closing(known)
            check_memory(compiled.memory_bytes, self.limits)
        except Exception as raised:
            compiled, error = None, raised
        with self._lock:
            assert job.timer is not None
            job.timer.cancel()
            self._forget(job)
            if compiled is not None and job.guide.key is not None and not self._closed:
                self.cache.put(job.guide.key, compiled)
            abandoned = job.future.done()
            if not abandoned and compiled is not None:
                job.future.set_result(compiled)
            elif not abandoned:
                job.future.set_exception(error)

    def _abandon(self, job: _Job, thread: threading.Thread) -> None:
        with self._lock:
            if job.future.done():
                return
            self._threads.discard(thread)
            self.num_abandoned += 1
            self._forget(job)
            if self._jobs and not self._closed:
                self._start_thread()
            job.future.set_exception(
                GuideError(
                    f"the guide did not compile in {self.limits.time_s:g} s; simplify it or raise the limit"
                )
            )

    def _forget(self, job: _Job) -> None:
        if self._in_flight.get(job.guide.key) is job.future:
            del self._in_flight[job.guide.key]
