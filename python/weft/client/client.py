"""The `EngineClient`: the one way to submit requests to an engine, and to follow them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import TypeVar

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import NO_LIMITS, ClientLimits, check_room, queue_size
from weft.client.engine_requests import PreparedRequest
from weft.client.engine_thread import EngineThread
from weft.client.following import Following
from weft.client.inputs import InputProcessor
from weft.client.response_queue import Listener, ResponseQueue
from weft.client.responses import RequestHandle, ResponseDelta
from weft.config import EngineConfig, Speculation
from weft.core.request import GenerationRequest
from weft.engine.engine import Engine
from weft.engine.sequence import Request
from weft.engine.stats import StepRecord
from weft.errors import ExecutorError, InputError, RequestError
from weft.grammar.compile.compiler import GuideCompiler

T = TypeVar("T")

Observer = Callable[[StepRecord | None, Sequence[Request]], object]
"""Hears of each step on the engine's thread: its record (None: there was none), and the requests that came before."""


class EngineClient:
    """Owns a built engine and the thread that steps it. Every method may be called from any thread.

    `inputs` reads requests; `responses` keeps what came of them until it is taken. `limits` bounds both. After `close`
    every call raises `ExecutorError`; so does it, with the cause, where the engine's loop itself failed. A client that
    is dropped closes.
    """

    def __init__(self, built: BuiltEngine, limits: ClientLimits = NO_LIMITS) -> None:
        self.built = built
        self.limits = limits
        self.inputs = InputProcessor(built.text, built.config, built.speculation, built.compiler)
        self.responses = ResponseQueue(limits)
        # Between two who find the last place free only one may take it.
        self._queue = threading.Lock()
        self._steps = _Steps(self.responses)
        self._thread = EngineThread(built.engine, self._steps)
        # Not at exit: what closes there is `engine_thread.py`'s, which comes before the runtime's own end.
        self._release = weakref.finalize(self, _release, self._thread, built.compiler)
        self._release.atexit = False
        if built.warms_up:
            try:
                self.warm_up()
            except BaseException:
                self._release()
                raise

    @classmethod
    def build(
        cls,
        source: ModelSource,
        device: str,
        dtype: str,
        speculation: Speculation,
        config: EngineConfig,
        limits: ClientLimits = NO_LIMITS,
    ) -> EngineClient:
        """Load a model and build the engine around it. Raises `ModelError`, `TokenizerError` or `InputError` for what
        does not fit."""
        return cls(BuiltEngine.build(source, device, dtype, speculation, config), limits)

    # -- parts

    @property
    def engine(self) -> Engine:
        """The engine beneath. While requests run, it is its thread's."""
        return self.built.engine

    @property
    def compiler(self) -> GuideCompiler | None:
        """What compiles guides; None where there is no vocabulary."""
        return self.built.compiler

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a guide, a slot or blocks."""
        return self._thread.num_waiting

    @property
    def is_idle(self) -> bool:
        """Whether nothing of any request is left with the engine: no work, and nothing that nobody has heard of."""
        has_work = self.call(lambda: self.engine.has_work)
        return not has_work and self._thread.is_idle and not self.responses.has_unpublished

    # -- requests

    def prepare(self, requests: Sequence[GenerationRequest]) -> list[PreparedRequest]:
        """Read and check requests, of which nothing begins. Raises `InputError` or `CapacityError` for the first that
        can't be served."""
        for request in requests:
            self._check_sequences(request)
        return self.inputs.prepare(requests)

    def submit(
        self, requests: Sequence[GenerationRequest | PreparedRequest], listener: Listener | None = None
    ) -> list[RequestHandle]:
        """Take requests, all or none; they come before the same step. `listener` is called with a handle when
        something came of it, on the engine's thread. What is wrong with a request that was not prepared ends it: it is
        the handle's `error`. Raises `CapacityError` where `limits` leave no room. Does not wait."""
        self.check()
        asked = [one.request if isinstance(one, PreparedRequest) else one for one in requests]
        sizes = [queue_size(request) for request in asked]
        with self._queue:
            check_room(self.limits, self.num_waiting, self.responses.pending_bytes, sizes)
            handles = [
                self.responses.open(request, size.num_bytes, listener)
                for request, size in zip(asked, sizes, strict=True)
            ]
            for handle, request in zip(handles, requests, strict=True):
                self._begin(handle, request)
            try:
                self._send(handles)
            except ExecutorError:
                for handle in handles:
                    self.responses.drop(handle)
                raise
        return handles

    def cancel(self, handles: Sequence[RequestHandle]) -> None:
        """End requests with what there is; what came of them stays until it is taken. Does not wait."""
        self._cancel([one for handle in handles for one in handle.engine_requests])

    def drop(self, handles: Sequence[RequestHandle]) -> None:
        """End requests and let go of what nobody has taken of them. Does not wait."""
        left = [handle for handle in handles if not handle.is_over]
        for handle in handles:
            self.responses.drop(handle)
        self.cancel(left)

    async def follow(self, handle: RequestHandle) -> AsyncGenerator[ResponseDelta, None]:
        """The deltas of a request as they come, without blocking an event loop. Leaving early drops the request."""
        following = self.following([handle])
        try:
            while came := await following.next():
                for _, deltas in came:
                    for delta in deltas:
                        yield delta
        finally:
            following.close()

    def following(
        self, handles: Sequence[RequestHandle], pause_s: Callable[[], float] | None = None
    ) -> Following:
        """Some requests, to be followed in an event loop; news of them comes at least `pause_s()` seconds apart."""
        return Following(self.responses, handles, self._cancel, pause_s)

    # -- the engine's thread

    def call(self, function: Callable[[], T]) -> T:
        """What `function` returns or raises, run between two steps, on the engine's thread."""
        return self._thread.call(function)

    def warm_up(self) -> None:
        """Capture the graphs in use ahead of the first requests (`Engine.warm_up`)."""
        self.call(self.engine.warm_up)

    def observe(self, observer: Observer) -> None:
        """Let `observer` hear of every step from now on. It must not raise, nor hold the client."""
        self._steps.observers.append(observer)

    def check(self) -> None:
        """Raise `ExecutorError` if there will be no more steps, or none in this process."""
        self._thread.check()

    def check_process(self) -> None:
        """Raise `ExecutorError` in a process that was forked from the client's."""
        self._thread.home.check()

    def close(self) -> None:
        """Cancel what runs, wake what waits, and let go of the engine; returns when that is done."""
        self._release()

    # -- beneath

    def _check_sequences(self, request: GenerationRequest) -> None:
        most = self.limits.max_sequences
        if request.num_sequences > most:
            raise InputError(f"n is {request.num_sequences}; a request has {most} sequences at most")

    def _begin(self, handle: RequestHandle, request: GenerationRequest | PreparedRequest) -> None:
        try:
            if handle.request.refusal is not None:
                raise handle.request.refusal
            if isinstance(request, GenerationRequest):
                (request,) = self.prepare([request])
            handle.begin(self.inputs.begin(request, handle.id))
        except (InputError, RequestError) as error:
            self.responses.refuse(handle, error)
        for sequence in handle.sequences:
            watcher = sequence.request.watcher
            watcher.on_progress = partial(self.responses.note, sequence)
            watcher.is_streaming = handle.request.streams

    def _send(self, handles: Sequence[RequestHandle]) -> None:
        begun = [one for handle in handles for one in handle.engine_requests]
        if begun:
            self._thread.submit(begun)

    def _cancel(self, requests: Sequence[Request]) -> None:
        if requests:
            self._thread.cancel(requests)


class _Steps:
    """Hears of the engine's steps. Holds nothing that holds the client."""

    def __init__(self, responses: ResponseQueue) -> None:
        self.observers: list[Observer] = []
        self._responses = responses

    def after_step(self, record: StepRecord | None, took: Sequence[Request]) -> Sequence[Request]:
        for observer in self.observers:
            observer(record, took)
        return self._responses.publish() if self._responses.noted else ()

    def at_end(self, error: ExecutorError) -> None:
        self._responses.end(error)


def _release(thread: EngineThread, compiler: GuideCompiler | None) -> None:
    if not thread.home.is_here:
        return
    thread.close()
    if compiler is not None:
        compiler.close()
