"""Compiling guides beside everything else: threads (`workers.py`), trials of strangers' guides, and a bounded cache.

What fails is remembered for a while, so that it is refused at once.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import replace

from weft.core.forks import Home
from weft.errors import GuideError, UnavailableError
from weft.grammar.base import Closes, CompiledGuide, Opening, Warming
from weft.grammar.compile import dumps
from weft.grammar.compile.cache import GuideCache, Refusals
from weft.grammar.compile.parts import Handed, Parts, make_backend
from weft.grammar.compile.trial import HELPER_WAIT_S, Trial
from weft.grammar.compile.workers import Job, Workers
from weft.grammar.guide import Guide
from weft.grammar.kinds.closing import prepare_closing
from weft.grammar.limits import CompileLimits, check_memory, check_size, check_text
from weft.grammar.starts import for_request
from weft.grammar.vocabulary.tokenizer import Vocabulary

SHORT_S = 10.0
"""Limits on the time of a compile under which the imports of a cold start count."""

_open: weakref.WeakSet[GuideCompiler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Native objects in the caches go before their types do."""
    for compiler in list(_open):
        compiler.close()


class GuideCompiler:
    """Compiles guides for one vocabulary, in `workers` threads of its own.

    `backend` is a name of the registry's grammars; `"auto"` takes the library that enforces more of a guide. Guides
    with the same content are compiled once, while the cache of `cache_limit_bytes` holds them. `untrusted`: guides come
    from strangers; each is compiled in another process first, whichever library takes it, and the default `limits` are
    `CompileLimits.untrusted()`. `close` when done, or use it with `with`.
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
        self._home = Home("guide compiler", GuideError)
        self.vocabulary = vocabulary
        self.limits = limits or (CompileLimits.untrusted() if untrusted else CompileLimits())
        self.cache = GuideCache(cache_limit_bytes)
        # First, as it starts beside what follows.
        self._trial = Trial(vocabulary, backend, self.limits) if untrusted else None
        try:
            self._backend = make_backend(backend, vocabulary, self.limits, untrusted)
        except BaseException:
            self._end_trial()
            raise
        self._lock = threading.Condition()
        self._workers = Workers(
            self._lock, self.limits, workers, begin=self._begin, work=self._compile, late=self._late
        )
        self._refusals = Refusals()
        self._in_flight: dict[Hashable, Job] = {}
        self._closed = False
        _open.add(self)

    @property
    def num_abandoned(self) -> int:
        """Compiles that are past their time limit and still at it."""
        return self._workers.num_abandoned

    def warm_up(self) -> None:
        """Import the grammar libraries ahead of the first guide, whose compiling would wait for that."""
        if isinstance(self._backend, Warming):
            self._backend.warm_up()

    def compile(self, guide: Guide) -> CompiledGuide:
        """Compile and wait. Raises `GuideError`."""
        return self.submit(guide).result()

    def submit(self, guide: Guide, client: Hashable = None) -> Future[CompiledGuide]:
        """Start compiling; the future's exception is a `GuideError` where that fails, and an `UnavailableError` where
        the guide can't be compiled now, as where `client` has too many guides waiting (None: whoever has no name).
        Clients' guides come in turn. Shared by equal guides, so that it can't be cancelled.
        """
        self._home.check()
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
            known = self._in_flight.get(guide.key) if guide.key is not None else None
            if known is not None:
                if known in self._workers.jobs:
                    self._workers.jobs.add(client, known)  # it need not wait for the turns of who asked first
                return known.future
            problem = self._refusal(guide, client)
            if problem is not None:
                future.set_exception(problem)
                return future
            job = Job(guide, future)
            if guide.key is not None:
                self._in_flight[guide.key] = job
            self._workers.add(job, client)
        return future

    def dump(self, compiled: CompiledGuide) -> bytes:
        """A compiled guide as bytes, for `load` of a compiler for the same vocabulary. Raises `GuideError` where its
        library can't write it."""
        return dumps.dump(compiled, self.vocabulary)

    def load(self, data: bytes) -> CompiledGuide:
        """What `dump` wrote, also into the cache, so that its guide is not compiled again. The bytes are trusted as
        the program itself is. Raises `GuideError` for anything else, another vocabulary or version of the library.
        """
        compiled = dumps.load(data, self.vocabulary, self._backend)
        check_memory(compiled.memory_bytes, self.limits)
        with self._lock:
            if compiled.guide.key is not None and not self._closed:
                self.cache.put(compiled.guide.key, compiled)
        return compiled

    def submit_closing(
        self, compiled: Future[CompiledGuide], client: Hashable = None
    ) -> Future[CompiledGuide]:
        """Work out how answers end, for `on_length="close"`, after what `submit` gave. The future's exception is a
        `GuideError` where that can't be known.
        """
        future: Future[CompiledGuide] = Future()
        future.set_running_or_notify_cancel()

        def go_on(done: Future[CompiledGuide]) -> None:
            error = done.exception()
            if error is None and self._is_others(done.result()):
                try:
                    again = self.submit(replace(done.result().guide, closes=True), client)
                except GuideError as closed:
                    future.set_exception(closed)
                else:
                    again.add_done_callback(go_on)
                return
            with self._lock:
                if error is None and self._closed:
                    error = GuideError("the compiler was closed")
                if error is None:
                    error = self._workers.too_much(client)
                if error is None:
                    self._workers.add(Job(done.result().guide, future, done.result()), client)
            if error is not None:
                future.set_exception(error)

        compiled.add_done_callback(go_on)
        return future

    def _is_others(self, compiled: CompiledGuide) -> bool:
        """Whether another library of the backend's would tell how its answers end."""
        guide, libraries = compiled.guide, getattr(self._backend, "libraries", {})
        return (
            compiled.backend in libraries
            and guide.payload is None
            and not guide.closes
            and not isinstance(compiled, Closes)
        )

    def check_size(self, text: str) -> None:
        """Raises `GuideError` for a guide's text that is beyond the limits: before anything is made of it."""
        check_size(text, self.limits)

    def open(self, compiled: Future[CompiledGuide], opening: Opening) -> Future[CompiledGuide]:
        """What was submitted, for the sequences of one request: where its matchers take long to begin, an engine begins
        them when a slot is near."""
        return for_request(compiled, opening)

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile on this thread, without trial or cache. Raises `GuideError`."""
        return Parts(self.vocabulary, self._backend, self.limits).compile_part(guide)

    def close(self) -> None:
        """Fail what waits, end the threads, let go of the cache. A compile at work is left to finish
        alone.
        """
        if not self._home.is_here:
            return
        with self._lock:
            self._closed = True
            waiting = self._workers.close()
            self._in_flight.clear()
            self.cache.clear()
        for job in waiting:
            job.future.set_exception(GuideError("the compiler was closed"))
        self._end_trial()
        self._workers.join()

    def __enter__(self) -> GuideCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Return when strangers' guides can be tried. Raises `UnavailableError` where that takes too long."""
        if self._trial is not None:
            self._trial.wait()

    def _begin(self, job: Job) -> None:
        """What counts for no guide's time: that the trial is there, and imports where that time is short."""
        try:
            if self._trial is not None and job.guide.payload is None:
                self._trial.wait(job.came_at + HELPER_WAIT_S)
            if self._trial is not None or self.limits.time_s < SHORT_S:
                self.warm_up()
        except Exception as error:
            with self._lock:
                self._forget(job)
                job.future.set_exception(error)

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()

    def _refusal(self, guide: Guide, client: Hashable) -> Exception | None:
        """Why a guide is not compiled now."""
        reason = self._refusals.get(guide)
        return GuideError(reason) if reason is not None else self._workers.too_much(client)

    def _compile(self, job: Job) -> None:
        try:
            error, compiled = None, self._made(job)
            check_memory(compiled.memory_bytes, self.limits)
        except Exception as raised:
            compiled, error = None, raised
        with self._lock:
            job.stop_timer()
            self._forget(job)
            if compiled is not None and job.guide.key is not None and not self._closed:
                self.cache.put(job.guide.key, compiled, job.measured_bytes)
            if isinstance(error, GuideError):
                self._refuse(job, str(error))
            abandoned = job.future.done()
            if not abandoned and compiled is not None:
                job.future.set_result(compiled)
            elif not abandoned:
                job.future.set_exception(error)

    def _made(self, job: Job) -> CompiledGuide:
        """The job's guide, compiled, or its ends worked out. A stranger's is tried before, in another process; an
        object of the program is no stranger's."""
        if self._trial is None or job.guide.payload is not None:
            job.begins()
            if job.compiled is not None:
                return prepare_closing(job.compiled)
            parts = Parts(self.vocabulary, self._backend, self.limits, job.watch)
            return parts.compile_part(job.guide)
        verdict = self._trial.run(
            job.guide,
            self.limits,
            closes=job.compiled is not None,
            until=job.came_at + HELPER_WAIT_S,
            waiting=lambda: self._workers.waiting(job),
        )
        job.begins()
        job.measured_bytes = verdict.memory_bytes
        handed = Handed(self.vocabulary, self._backend, self.limits, verdict.parts)
        if job.compiled is not None:
            return prepare_closing(job.compiled, handed.text(job.guide))
        return handed.compile_part(job.guide)

    def _late(self, job: Job) -> None:
        """A job is past its time limit; its thread is left alone with it. A trial has bounds of its own, so that a job
        is late by its own fault only where a library had its time in this process."""
        self._forget(job)
        limit_s = self.limits.time_s
        if job.waited_s is None or job.waited_s > limit_s / 2:
            job.future.set_exception(
                UnavailableError(
                    f"this machine is too busy: the guide did not compile in {limit_s:g} s; send it again later"
                )
            )
            return
        late = GuideError(f"the guide did not compile in {limit_s:g} s; simplify it or raise the limit")
        self._refuse(job, str(late))
        job.future.set_exception(late)

    def _refuse(self, job: Job, reason: str) -> None:
        """Remember it, unless only how answers end is not known."""
        if job.compiled is None:
            self._refusals.put(job.guide, reason)

    def _forget(self, job: Job) -> None:
        if self._in_flight.get(job.guide.key) is job:
            del self._in_flight[job.guide.key]
