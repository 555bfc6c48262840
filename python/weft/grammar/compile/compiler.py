"""`GuideCompiler`: compiles guides on worker threads, with trials of untrusted guides and a bounded cache.

It remembers a guide that failed for a while, and refuses the same guide without another compile.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from weft.core.forks import Home
from weft.core.names import COMPILER_HINTS, with_attribute_hints
from weft.errors import GuideError, UnavailableError
from weft.grammar.base import Closes, CompiledGuide, Opening, Warming
from weft.grammar.compile import dumps
from weft.grammar.compile.cache import GuideCache, Refusals
from weft.grammar.compile.parts import Parts, TriedParts, make_backend
from weft.grammar.compile.trial import HELPER_WAIT_S, Trial
from weft.grammar.compile.workers import Job, Workers
from weft.grammar.guide import Guide
from weft.grammar.kinds.closing import prepare_closing
from weft.grammar.limits import CompileLimits, check_memory, check_size, check_text
from weft.grammar.starts import for_request
from weft.grammar.vocabulary.tokenizer import Vocabulary

SHORT_S = 10.0
"""If the compile-time limit is below this, the grammar libraries are imported before a guide's time starts. With trials
they always are."""

_open: weakref.WeakSet[GuideCompiler] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Drop the native objects in the caches before the interpreter drops their types."""
    for compiler in list(_open):
        compiler.close()


@with_attribute_hints(COMPILER_HINTS)
class GuideCompiler:
    """Compiles guides for one vocabulary, on `workers` threads of its own.

    `backend` is a name from the registry's "grammars"; `"auto"` takes the library that enforces more of a guide.
    Equal guides are compiled once, as long as the cache of `cache_limit_bytes` holds them. With `untrusted`, each
    guide without a `payload` is first compiled in another process, and the default `limits` are
    `CompileLimits.untrusted()`. Call `close` when done, or use `with`.
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
        # Before the backend, so that the helper process starts while this process makes it.
        self._trial = Trial(vocabulary, backend, self.limits) if untrusted else None
        try:
            self._backend = make_backend(backend, vocabulary, self.limits, untrusted)
        except BaseException:
            self._close_trial()
            raise
        self._lock = threading.Condition()
        self._workers = Workers(
            self._lock, self.limits, workers, prepare=self._prepare, work=self._work, time_out=self._time_out
        )
        self._refusals = Refusals()
        self._jobs: dict[Hashable, Job] = {}
        self._closed = False
        _open.add(self)

    @property
    def num_abandoned(self) -> int:
        """The number of compiles that exceeded their time limit and are still running."""
        return self._workers.num_abandoned

    def warm_up(self) -> None:
        """Import the grammar libraries now, so that the first guide does not wait for the import."""
        if isinstance(self._backend, Warming):
            self._backend.warm_up()

    def compile(self, guide: Any) -> CompiledGuide:
        """Compile a guide, or anything that `Guide.of` takes, and wait. Raises `GuideError`, or `UnavailableError` if
        the guide can't be compiled now."""
        return self.submit(guide).result()

    def submit(self, guide: Any, client: Hashable = None) -> Future[CompiledGuide]:
        """Queue a guide, or anything that `Guide.of` takes, for compiling. Clients take turns; unnamed clients (None)
        share one queue.

        The future's exception is a `GuideError` if the guide does not compile. It is an `UnavailableError` if the guide
        can't be compiled now, for example because `client` has too many guides waiting. Equal guides share the future,
        so it can't be cancelled. Raises `GuideError` after `close`, and in a fork of the process.
        """
        self._home.check()
        guide = Guide.of(guide)
        if guide.python_type is not None:
            # Types with equal schemas share a compiled guide, and the cache must not keep a user's type alive.
            guide = replace(guide, python_type=None)
        future: Future[CompiledGuide] = Future()
        future.set_running_or_notify_cancel()  # refuses cancellation: others may wait for the same future
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
            known_job = self._jobs.get(guide.key) if guide.key is not None else None
            if known_job is not None:
                if known_job in self._workers.jobs:
                    # Queue the shared job for this client, too. Otherwise it would wait behind the first client's other
                    # guides.
                    self._workers.jobs.add(client, known_job)
                return known_job.future
            problem = self._refusal(guide, client)
            if problem is not None:
                future.set_exception(problem)
                return future
            job = Job(guide, future)
            if guide.key is not None:
                self._jobs[guide.key] = job
            self._workers.add(job, client)
        return future

    def dump(self, compiled: CompiledGuide) -> bytes:
        """Serialize a compiled guide, for `load` of a compiler with the same vocabulary. Raises `GuideError` if its
        library can't serialize it."""
        return dumps.dump(compiled, self.vocabulary)

    def load(self, data: bytes) -> CompiledGuide:
        """Rebuild a compiled guide from the bytes of `dump`, and cache it. The bytes must come from a trusted source.
        Raises `GuideError` for other bytes, another vocabulary, another library or version of it, or a guide above
        `limits.memory_bytes`.
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
        """Chain to a future of `submit`: compute the shortest endings, which `on_length="close"` needs. The returned
        future's exception is that of `compiled`, a `GuideError` if they can't be computed, or an `UnavailableError` as
        in `submit`.
        """
        future: Future[CompiledGuide] = Future()
        future.set_running_or_notify_cancel()

        def continue_with(done: Future[CompiledGuide]) -> None:
            error = done.exception()
            if error is None and self._needs_another_library(done.result()):
                try:
                    closing = self.submit(replace(done.result().guide, closes=True), client)
                except GuideError as closed:
                    future.set_exception(closed)
                else:
                    closing.add_done_callback(continue_with)
                return
            with self._lock:
                if error is None and self._closed:
                    error = GuideError("the compiler was closed")
                if error is None:
                    error = self._workers.refusal(client)
                if error is None:
                    self._workers.add(Job(done.result().guide, future, done.result()), client)
            if error is not None:
                future.set_exception(error)

        compiled.add_done_callback(continue_with)
        return future

    def _needs_another_library(self, compiled: CompiledGuide) -> bool:
        """Return whether the library that compiled the guide can't compute shortest endings, but another one may."""
        guide, libraries = compiled.guide, getattr(self._backend, "libraries", {})
        return (
            compiled.backend in libraries
            and guide.payload is None
            and not guide.closes
            and not isinstance(compiled, Closes)
        )

    def check_size(self, text: str) -> None:
        """Raise `GuideError` if a guide's text is too long. Call it before anything parses the text."""
        check_size(text, self.limits)

    def open(self, compiled: Future[CompiledGuide], opening: Opening) -> Future[CompiledGuide]:
        """Return a future of the guide for the sequences of one request: a `StartedGuide` if its matchers start slowly,
        else the compiled guide itself."""
        return for_request(compiled, opening)

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile on the calling thread, without trial or cache. Raises `GuideError`."""
        return Parts(self.vocabulary, self._backend, self.limits).compile_part(guide)

    def close(self) -> None:
        """Fail the waiting guides, end the threads and empty the cache. A running compile finishes in the
        background."""
        if not self._home.is_here:
            return
        with self._lock:
            self._closed = True
            waiting = self._workers.close()
            self._jobs.clear()
            self.cache.clear()
        for job in waiting:
            job.future.set_exception(GuideError("the compiler was closed"))
        self._close_trial()
        self._workers.join()

    def __enter__(self) -> GuideCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self) -> None:
        """Wait until the trial process is ready; without one, return at once. Raises `UnavailableError` if the process
        does not start."""
        if self._trial is not None:
            self._trial.wait()

    def _close_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()

    def _refusal(self, guide: Guide, client: Hashable) -> Exception | None:
        """Return the error for a guide that may not be queued now, or None."""
        reason = self._refusals.get(guide)
        return GuideError(reason) if reason is not None else self._workers.refusal(client)

    # Called by the worker threads

    def _prepare(self, job: Job) -> None:
        """Wait for the helper process and the imports, before the guide's time starts."""
        try:
            if self._trial is not None and job.guide.payload is None:
                self._trial.wait(job.submitted_at + HELPER_WAIT_S)
            if self._trial is not None or self.limits.time_s < SHORT_S:
                self.warm_up()
        except Exception as error:
            with self._lock:
                self._remove_job(job)
                job.future.set_exception(error)

    def _work(self, job: Job) -> None:
        try:
            error, compiled = None, self._compiled(job)
            check_memory(compiled.memory_bytes, self.limits)
        except Exception as raised:
            compiled, error = None, raised
        with self._lock:
            job.stop_timer()
            self._remove_job(job)
            if compiled is not None and job.guide.key is not None and not self._closed:
                self.cache.put(job.guide.key, compiled, job.measured_bytes)
            if isinstance(error, GuideError):
                self._remember_refusal(job, str(error))
            if job.future.done():  # it timed out meanwhile
                return
            if compiled is not None:
                job.future.set_result(compiled)
            else:
                job.future.set_exception(error)

    def _compiled(self, job: Job) -> CompiledGuide:
        """Compile the job's guide, or compute its shortest endings. An untrusted guide must pass a trial first. A guide
        with a `payload` was made by this program, so it is trusted."""
        if self._trial is None or job.guide.payload is not None:
            job.library_starts()
            if job.compiled is not None:
                return prepare_closing(job.compiled)
            parts = Parts(self.vocabulary, self._backend, self.limits, job.watch)
            return parts.compile_part(job.guide)
        verdict = self._trial.run(
            job.guide,
            self.limits,
            closes=job.compiled is not None,
            until=job.submitted_at + HELPER_WAIT_S,
            waiting=lambda: self._workers.waiting(job),
        )
        job.library_starts()
        job.measured_bytes = verdict.memory_bytes
        tried = TriedParts(self.vocabulary, self._backend, self.limits, verdict.parts)
        if job.compiled is not None:
            return prepare_closing(job.compiled, tried.text(job.guide))
        return tried.compile_part(job.guide)

    def _time_out(self, job: Job) -> None:
        """Fail a job that exceeded its time."""
        self._remove_job(job)
        limit_s = self.limits.time_s
        # A trial has its own limit of half the time. If the library in this process had less than the other half, the
        # machine is too slow, and the guide is not at fault.
        if job.library_started_s is None or job.library_started_s > limit_s / 2:
            job.future.set_exception(
                UnavailableError(
                    f"this machine is too busy: the guide did not compile in {limit_s:g} s; send it again later"
                )
            )
            return
        late = GuideError(f"the guide did not compile in {limit_s:g} s; simplify it or raise the limit")
        self._remember_refusal(job, str(late))
        job.future.set_exception(late)

    def _remember_refusal(self, job: Job, reason: str) -> None:
        if (
            job.compiled is None
        ):  # a failure to compute shortest endings must not refuse the guide for requests without `on_length`
            self._refusals.put(job.guide, reason)

    def _remove_job(self, job: Job) -> None:
        if self._jobs.get(job.guide.key) is job:
            del self._jobs[job.guide.key]
