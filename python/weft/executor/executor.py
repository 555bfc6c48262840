"""The `Executor`: requests in, responses out, for many clients at once."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from weft.engine.request import Request as EngineRequest
from weft.engine.stats import TurnRecord
from weft.errors import ExecutorError, InputError, RequestError
from weft.executor.arguments import seconds_of, settings_of
from weft.executor.assembly import Assembly, Source
from weft.executor.following import follow
from weft.executor.guides import Guides
from weft.executor.mailbox import Mailbox
from weft.executor.responses import response, terminated
from weft.executor.room import QueueSize, check_room, queue_size
from weft.executor.stats import History
from weft.executor.tickets import Event, Ticket
from weft.executor.translate import Translator, engine_config, speculation
from weft.executor.types import (
    ExecutorConfig,
    GuidedDecodingParams,
    IterationStats,
    ModelType,
    Request,
    RequestStatsPerIteration,
    Response,
)
from weft.executor.unread import MailboxLimits
from weft.executor.worker import Worker
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary

NO_GUIDES = (
    "the request is guided, but the executor was made without a guided_decoding_config; make it with "
    "ExecutorConfig(guided_decoding_config=GuidedDecodingConfig())"
)
NO_VOCABULARY = (
    "guides need a tokenizer; give Executor(tokenizer=...) a directory that has one, or a Vocabulary"
)


class Executor:
    """Serves requests on a thread of its own, many at once, with TensorRT-LLM's Executor API.

    `model` is a Hugging Face directory, None (weft-tiny, the model inside the package), or weights in memory: a dict of
    tensors under a checkpoint's names, with `config_json`, what its config.json says (a dict, or a file). `tokenizer`
    is a directory or a `weft.grammar.Vocabulary`; a model directory has its own, and weights in memory without one take
    token ids only, and no guides. `device` is "cpu", "cuda" or "auto"; `dtype` "auto" (the config's), "float32",
    "float16" or "bfloat16". As in TensorRT-LLM, `ModelType.DECODER_ONLY` may stand before the config. What is assigned
    to the config later, or to a request that was enqueued, does not reach the executor. Raises `ModelError`,
    `TokenizerError` or `InputError` for what does not fit.

    Every method may be called from any thread. After `shutdown` every call raises `ExecutorError`; so does it, with the
    cause, where the loop itself failed. Use it with `with`, or call `shutdown`.

    `flight_recorder` writes the last iterations on demand, where `ExecutorConfig.flight_recorder` asks for one.
    """

    def __init__(
        self,
        model: str | Path | Mapping[str, Tensor] | None = None,
        config: ExecutorConfig | ModelType | None = None,
        executor_config: ExecutorConfig | None = None,
        *,
        config_json: str | Path | Mapping[str, Any] | None = None,
        tokenizer: str | Path | Vocabulary | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        settings = settings_of(config, executor_config)
        source = Source.of(model, config_json, tokenizer)
        self._start(
            Assembly.build(source, device, dtype, speculation(settings), engine_config(settings)), settings
        )

    @classmethod
    def _over(cls, assembly: Assembly, config: ExecutorConfig | None = None) -> Executor:
        """An executor of an engine that is built; `config` says what the engine does not know of."""
        executor = cls.__new__(cls)
        executor._start(assembly, config if config is not None else ExecutorConfig())
        return executor

    def _start(self, assembly: Assembly, config: ExecutorConfig) -> None:
        self.config = config
        self.assembly = assembly
        compiler = assembly.compiler if config.guided_decoding_config is not None else None
        if config.guided_decoding_config is not None and compiler is None:
            raise InputError(NO_VOCABULARY)
        self._guides = Guides(compiler, NO_GUIDES)
        self._translator = Translator(config, assembly.words, self._guides)
        self._mailbox = mailbox = Mailbox(MailboxLimits(config.max_unread_responses, config.max_unread_bytes))
        # Between two who find the last place free only one may take it.
        self._queue = threading.Lock()
        self._history = History(
            assembly.config,
            config.iter_stats_max_iterations,
            config.request_stats_max_iterations,
            assembly.runtime.memory,
            assembly.compiler.cache if assembly.compiler is not None else None,
            lambda: mailbox.num_forgotten,
        )
        self._worker = Worker(assembly.engine, _Turns(self._mailbox, self._history))
        # Not at exit: what closes there is `worker.py`'s, which comes before the runtime's own end.
        self._release = weakref.finalize(self, _release, self._worker, assembly.compiler)
        self._release.atexit = False
        try:
            if assembly.warms_up:
                self._worker.call(assembly.engine.warm_up)
            self.flight_recorder = None
            if config.flight_recorder is not None:
                iterations, directory = config.flight_recorder.iterations, config.flight_recorder.directory
                self.flight_recorder = assembly.record(iterations, directory)
        except BaseException:
            self._release()
            raise

    # -- requests

    def enqueue_request(self, request: Request) -> int:
        """Take a request; its number. What is wrong with it comes as an error response. Raises `CapacityError` where
        the queue is full (`ExecutorConfig.max_queue_size` sequences wait, or requests hold `max_pending_bytes`)."""
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """Take several requests, all or none; they come before the same iteration."""
        if not isinstance(requests, Sequence):
            raise InputError(f"requests is a {type(requests).__name__}; give a list of weft.executor.Request")
        for request in requests:
            if not isinstance(request, Request):
                raise InputError(f"a request is a {type(request).__name__}; give weft.executor.Request")
        self._worker.check()
        # The caller may change his own and enqueue it again.
        requests = [request.snapshot() for request in requests]
        with self._queue:
            sizes = self._queue_sizes(requests)
            tickets = [self._open(request, size) for request, size in zip(requests, sizes, strict=True)]
            begun = [answer.request for ticket in tickets for answer in ticket.answers]
            try:
                self._submit(begun)
            except ExecutorError:
                for ticket in tickets:
                    self._mailbox.drop(ticket)
                raise
        return [ticket.id for ticket in tickets]

    def _submit(self, requests: Sequence[EngineRequest]) -> None:
        """Give the engine requests of its own kind. What becomes of them their `on_progress` hears, and nobody else."""
        if requests:
            self._worker.submit(requests)

    def cancel_request(self, request_id: int) -> None:
        """End a request, with what there is: its last response is no error, and says CANCELLED. It stays until it is
        taken; who does not want it calls `drop_request`. Does not wait."""
        self._worker.check()
        ticket = self._mailbox.find(request_id)
        if ticket is not None:
            self._cancel([answer.request for answer in ticket.answers])

    def drop_request(self, request_id: int) -> None:
        """End a request and let go of it whole, with the responses that nobody has taken: whoever asks for it later is
        told that it was terminated. Of one that is gone nothing happens. Does not wait."""
        self._worker.check()
        ticket = self._mailbox.find(request_id)
        if ticket is not None:
            sequences = [answer.request for answer in ticket.answers]
            self._mailbox.drop(ticket)
            self._cancel(sequences)

    def _cancel(self, requests: Sequence[EngineRequest]) -> None:
        """End the engine's own requests, those given to `_submit`. Does not wait."""
        self._worker.cancel(requests)

    def can_enqueue_requests(self) -> bool:
        """Whether this process may enqueue requests: it may, there is no other."""
        self._worker.check()
        return True

    def is_participant(self) -> bool:
        """Whether this process takes part in the work: it does, there is no other."""
        self._worker.check()
        return True

    # -- responses

    @overload
    def await_responses(self, request_id: timedelta) -> list[Response]: ...

    @overload
    def await_responses(
        self, request_id: int | None = None, timeout: timedelta | float | None = None
    ) -> list[Response]: ...

    @overload
    def await_responses(
        self, request_id: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    def await_responses(
        self,
        request_id: int | Sequence[int] | timedelta | None = None,
        timeout: timedelta | float | None = None,
    ) -> list[Response] | list[list[Response]]:
        """Take what is ready, of any request, of one, or (a list for each, in order) of several.

        Waits until there is a response (of several requests: one of each), `timeout` seconds at most (a number or a
        timedelta; None: for ever); there may be none then. A timedelta alone, in the first place, is the timeout. A
        request whose last response was taken gives an error response. Raises `InputError` for a number that no request
        has.
        """
        self._worker.home.check()
        if isinstance(request_id, timedelta):
            if timeout is not None:
                raise InputError("two timeouts are given; give request_id as a number, or leave one out")
            request_id, timeout = None, request_id
        seconds = seconds_of(timeout)
        if request_id is None:
            return [
                self._response(ticket, event)
                for ticket, events in self._mailbox.take_any(seconds)
                for event in events
            ]
        if isinstance(request_id, Sequence) and not isinstance(request_id, str):
            return self._take(request_id, seconds)
        return self._take([request_id], seconds)[0]

    def get_num_responses_ready(self, request_id: int | None = None) -> int:
        """How many responses could be taken now, of one request or of all."""
        self._worker.check()
        return self._mailbox.num_ready(request_id)

    # -- the same, without blocking an event loop

    async def aenqueue(self, request: Request) -> int:
        """`enqueue_request`, which does not wait, for symmetry."""
        return self.enqueue_request(request)

    async def adrop(self, request_id: int) -> None:
        """`drop_request`, which does not wait, for symmetry. Whoever is in `aresponses` of the request leaves it."""
        self.drop_request(request_id)

    async def aresponses(self, request_id: int) -> AsyncIterator[Response]:
        """The responses of one request as they come. Leaving the loop early, or its task being cancelled, cancels the
        request."""
        self._worker.check()
        ticket = self._mailbox.find(request_id)
        if ticket is None:
            yield self._gone(request_id)
            return
        async with contextlib.aclosing(follow(self._mailbox, ticket, self._cancel)) as events:
            async for event in events:
                yield self._response(ticket, event)

    # -- guides, statistics, end

    def register_guide(self, name: str, guide: Guide | GuidedDecodingParams) -> Future[CompiledGuide]:
        """Compile a guide ahead and keep it: requests name it with `GuidedDecodingParams.handle(name)`.

        Requests may do so at once. The future is the compiled guide. Whatever is wrong with the guide's text is raised
        by the future, as `GuideError`, and is the error of requests that name it; `register_guide` itself raises
        nothing but `InputError`: without a `guided_decoding_config`, and for what is no name or no guide. A name that
        is taken is the new guide's from then on.
        """
        self._worker.check()
        return self._guides.register(name, guide)

    def forget_guide(self, name: str) -> None:
        """Keep a registered guide no longer. Requests that have it go on."""
        self._worker.check()
        self._guides.forget(name)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """Of the iterations since the last call, `ExecutorConfig.iter_stats_max_iterations` at most."""
        self._worker.check()
        return self._history.iterations()

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """Of every request in the iterations since the last call, `request_stats_max_iterations` at most."""
        self._worker.check()
        return self._history.requests()

    def _call(self, function: Callable[[], Any]) -> Any:
        """What `function` returns or raises, run between two iterations, on the engine's thread."""
        return self._worker.call(function)

    def shutdown(self) -> None:
        """Cancel what runs, wake whoever waits, and let go of the engine; returns when that is done. Waiting calls are
        given the last responses; later ones raise `ExecutorError`."""
        self._release()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # -- beneath

    def _open(self, request: Request, size: QueueSize) -> Ticket:
        ticket = self._mailbox.open(request, max(size.num_sequences, 1), size.num_bytes)
        try:
            ticket.begin(self._translator.engine_requests(ticket.id, request))
        except (InputError, RequestError) as error:
            self._mailbox.refuse(ticket, str(error))
        for answer in ticket.answers:
            answer.request.on_progress = partial(self._mailbox.note, answer)
            answer.request.is_watched = request.streaming
        return ticket

    def _queue_sizes(self, requests: Sequence[Request]) -> list[QueueSize]:
        """What each would add to the queue. Raises `CapacityError` where there is no room for all."""
        sizes = [queue_size(request, self.config) for request in requests]
        check_room(self.config, self._worker.num_waiting, self._mailbox.pending_bytes, sizes)
        return sizes

    def _gone(self, request_id: int) -> Response:
        return terminated(request_id, self._mailbox.was_forgotten(request_id))

    def _take(self, request_ids: Sequence[int], seconds: float | None) -> list[list[Response]]:
        return [
            [self._gone(request_id)]
            if ticket is None
            else [self._response(ticket, event) for event in events]
            for request_id, (ticket, events) in zip(
                request_ids, self._mailbox.take(request_ids, seconds), strict=True
            )
        ]

    def _response(self, ticket: Ticket, event: Event) -> Response:
        return response(ticket, event, self.assembly.config.page_size)


class _Turns:
    """Hears of the engine's turns. Holds nothing that holds the executor."""

    def __init__(self, mailbox: Mailbox, history: History) -> None:
        self._mailbox = mailbox
        self._history = history

    def after_turn(self, record: TurnRecord | None, took: Sequence[EngineRequest]) -> Sequence[EngineRequest]:
        self._history.note(record, took)
        return self._mailbox.publish()

    def at_end(self, error: ExecutorError) -> None:
        self._mailbox.end(error)


def _release(worker: Worker, compiler: GuideCompiler | None) -> None:
    if not worker.home.is_here:
        return
    worker.close()
    if compiler is not None:
        compiler.close()
