"""The `EngineClient`: the one way to submit requests to an engine, and to follow them."""

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

Observer = Callable[[StepRecord | None, abc.Sequence[Sequence]], object]
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

    def prepare(self, requests: abc.Sequence[Request]) -> list[Request]:
        """Read and check requests, of which nothing begins. Raises `InputError` or `CapacityError` for the first that
        can't be served."""
        for request in requests:
            check_sequences(request, self.limits)
        return self.inputs.prepare(requests)

    def submit(self, requests: abc.Sequence[Request], listener: Listener | None = None) -> list[Response]:
        """Take requests, all or none; they come before the same step. `listener` is called with a handle when
        something came of it, on the engine's thread. What is wrong with a request that was not prepared ends it: it is
        the handle's `error`. Raises `CapacityError` where `limits` leave no room. Does not wait."""
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
        """End requests with what there is; what came of them stays until it is taken. Does not wait."""
        self._cancel([sequence for response in responses for sequence in response.sequences])

    def drop(self, responses: abc.Sequence[Response]) -> None:
        """End requests and let go of what nobody has taken of them. Does not wait."""
        left = [response for response in responses if not response.is_over]
        for response in responses:
            self.responses.drop(response)
        self.cancel(left)

    async def follow(self, response: Response) -> AsyncGenerator[ResponseDelta, None]:
        """The deltas of a request as they come, without blocking an event loop. Leaving early drops the request."""
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
        """Some requests, to be followed in an event loop; news of them comes at least `pause_s()` seconds apart."""
        return Following(self.responses, responses, self._cancel, pause_s)

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
    """Hears of the engine's steps. Holds nothing that holds the client."""

    def __init__(self, responses: ResponseQueue) -> None:
        self.observers: list[Observer] = []
        self._responses = responses

    def after_step(self, record: StepRecord | None, took: abc.Sequence[Sequence]) -> abc.Sequence[Sequence]:
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
