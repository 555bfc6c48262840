"""The `EngineClient`, through which every front submits requests to an engine and follows them."""

from __future__ import annotations

import threading
import weakref
from collections import abc
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeVar

from weft.client.builder import BuiltEngine, ModelSource
from weft.client.capacity import NO_LIMITS, ClientLimits, check_room, check_sequences, queue_size
from weft.client.engine_thread import EngineThread
from weft.client.following import Following
from weft.client.inputs import InputProcessor
from weft.client.response_queue import Listener, ResponseQueue
from weft.client.responses import Response, ResponseDelta
from weft.config import EngineConfig, Speculation
from weft.core.request import OWN_NAMES, Request
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import ExecutorError, InputError, RequestError
from weft.grammar.compile.compiler import GuideCompiler

T = TypeVar("T")

StepObserver = Callable[[StepRecord | None, abc.Sequence[Sequence]], object]
"""Called on the engine's thread with the record of each step and the sequences submitted since the previous call. The
record is None if no step has ended since then."""


class EngineClient:
    """Owns a built engine and the thread that steps it. Every method may be called from any thread.

    `inputs` prepares requests; `responses` holds their deltas until they are taken; `limits` bounds both. After `close`
    every call that needs the engine raises `ExecutorError`. After a failure of the engine's loop the error has a cause,
    the loop's error. A client that is garbage-collected closes itself.
    """

    def __init__(self, built: BuiltEngine, limits: ClientLimits = NO_LIMITS) -> None:
        self.built = built
        self.limits = limits
        self.inputs = InputProcessor(built.text, built.config, built.speculation, built.compiler)
        self.responses = ResponseQueue(limits)
        # Makes the capacity check and the submission atomic: two threads must not both take the last free space.
        self._queue = threading.Lock()
        self._steps = _Steps(self.responses)
        self._thread = EngineThread(built.engine, self._steps)
        # The finalizer must not run at exit: `engine_thread.py` closes all threads then, before the runtime shuts down.
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
        """Load a model and build an engine for it. Raises `ModelError`, `TokenizerError` or `InputError` for parts that
        can't be loaded or do not fit together."""
        return cls(BuiltEngine.build(source, device, dtype, speculation, config), limits)

    # -- parts

    @property
    def engine(self) -> Engine:
        """The engine. While requests run, only its thread may use it (`call`)."""
        return self.built.engine

    @property
    def compiler(self) -> GuideCompiler | None:
        """The guide compiler; None without a vocabulary."""
        return self.built.compiler

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a guide, a slot or pages."""
        return self._thread.num_waiting

    @property
    def num_compiling(self) -> int:
        """Sequences that wait for their guide, or for their matcher to start. They count as waiting, too."""
        return self.engine.num_compiling

    @property
    def is_idle(self) -> bool:
        """Whether the engine has no work and has published everything."""
        has_work = self.call(lambda: self.engine.has_work)
        return not has_work and self._thread.is_idle and not self.responses.has_unpublished

    # -- requests

    def prepare(self, requests: abc.Sequence[Request]) -> list[Request]:
        """Check requests and convert them to token ids, without starting any. Raises `InputError` or `CapacityError`
        for the first that can't be served."""
        for request in requests:
            check_sequences(request, self.limits)
        return self.inputs.prepare(requests)

    def submit(self, requests: abc.Sequence[Request], listener: Listener | None = None) -> list[Response]:
        """Queue requests, all or none, so that the same step sees all of them. Does not wait.

        `listener` is called with each response that has new deltas or was dropped (`Response.listeners`). A request
        that is not prepared yet is prepared here. If that fails, it alone ends at once, and its response has `error`
        set. Raises `CapacityError` if the queue has no room for all requests, and `ExecutorError` if there will be no
        more steps."""
        self.check()
        sizes = [queue_size(request) for request in requests]
        with self._queue:
            names = requests[0].names if requests else OWN_NAMES
            check_room(self.limits, self.num_waiting, self.responses.pending_bytes, sizes, names)
            responses = [
                self.responses.open(request, size.num_bytes, listener)
                for request, size in zip(requests, sizes, strict=True)
            ]
            for response in responses:
                self._begin(response)
            try:
                self._send(responses)
            except ExecutorError:
                for response in responses:
                    self.responses.drop(response)
                raise
        return responses

    def cancel(self, responses: abc.Sequence[Response]) -> None:
        """Cancel requests, keeping their partial answers. Deltas stay until they are taken. Does not wait."""
        self._cancel([sequence for response in responses for sequence in response.sequences])

    def drop(self, responses: abc.Sequence[Response]) -> None:
        """Cancel requests and discard the deltas not taken yet. Does not wait."""
        left = [response for response in responses if not response.is_over]
        for response in responses:
            self.responses.drop(response)
        self.cancel(left)

    async def follow(self, response: Response) -> AsyncGenerator[ResponseDelta, None]:
        """Yield the deltas of a request as they arrive, without blocking the event loop. Closing the generator early
        drops the request."""
        following = self.following([response])
        try:
            while came := await following.next():
                for _, deltas in came:
                    for delta in deltas:
                        yield delta
        finally:
            following.close()

    def following(
        self, responses: abc.Sequence[Response], pause_s: Callable[[], float] | None = None
    ) -> Following:
        """Follow several requests in the running event loop. Two batches of deltas are at least `pause_s()` seconds
        apart, unless a request ends."""
        return Following(self.responses, responses, self._cancel, pause_s)

    # -- the engine's thread

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the engine's thread between two steps, or at once if this is that thread. Returns its
        result or raises its error."""
        return self._thread.call(function)

    def warm_up(self) -> None:
        """Capture the graphs before the first requests need them (`Engine.warm_up`)."""
        self.call(self.engine.warm_up)

    def observe(self, observer: StepObserver) -> None:
        """Call `observer` with every step from now on. It must not raise. It must not reference the client, or the
        client could never be garbage-collected."""
        self._steps.observers.append(observer)

    def check(self) -> None:
        """Raise `ExecutorError` if there will be no more steps, or none in this process."""
        self._thread.check()

    def check_process(self) -> None:
        """Raise `ExecutorError` in a fork of the client's process."""
        self._thread.home.check()

    def close(self) -> None:
        """Cancel all requests, wake all waiting calls, and close the engine and the guide compiler. Returns when that
        is done. Does nothing in a fork."""
        self._release()

    # -- internal

    def _begin(self, response: Response) -> None:
        try:
            if response.request.refusal is not None:
                raise response.request.refusal
            if not response.request.is_prepared:
                (response.request,) = self.prepare([response.request])
            response.begin(self.inputs.begin(response.request, response.id))
        except (InputError, RequestError) as error:
            self.responses.refuse(response, error)
        for sequence in response.sequences:
            sequence.on_progress = partial(self.responses.note, response)
            sequence.is_streaming = response.request.streams

    def _send(self, responses: abc.Sequence[Response]) -> None:
        begun = [sequence for response in responses for sequence in response.sequences]
        if begun:
            self._thread.submit(begun)

    def _cancel(self, sequences: abc.Sequence[Sequence]) -> None:
        if sequences:
            self._thread.cancel(sequences)


class _Steps:
    """The client's listener for the engine's steps."""

    # Must not reference the client: the engine's thread holds this object, which would keep a dropped client alive.

    def __init__(self, responses: ResponseQueue) -> None:
        self.observers: list[StepObserver] = []
        self._responses = responses

    def after_step(self, record: StepRecord | None, took: abc.Sequence[Sequence]) -> abc.Sequence[Sequence]:
        for observer in self.observers:
            observer(record, took)
        return self._responses.publish() if self._responses.noted else ()

    def at_end(self, error: ExecutorError) -> None:
        self._responses.end(error)


def _release(thread: EngineThread, compiler: GuideCompiler | None) -> None:
    # A forked child has neither the thread nor the compiler's workers.
    if not thread.home.is_here:
        return
    thread.close()
    if compiler is not None:
        compiler.close()
