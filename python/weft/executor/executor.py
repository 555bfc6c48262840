"""The `Executor`: TensorRT-LLM's interface to the engine, for many clients at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, overload

from torch import Tensor

from weft.client import responses
from weft.client.builder import BuiltEngine
from weft.client.client import EngineClient
from weft.client.flight_recorder import record
from weft.client.responses import ResponseDelta
from weft.errors import ExecutorError, InputError
from weft.executor.arguments import Arguments, seconds_of
from weft.executor.debugging import DebugTensors, names_of
from weft.executor.guides import Guides
from weft.executor.kv_cache import KVCacheEventManager
from weft.executor.responses import response, terminated
from weft.executor.settings import check_room, client_limits, engine_config, speculation
from weft.executor.stats import History
from weft.executor.translate import Translator
from weft.executor.types import (
    DebugTensorsPerIteration,
    ExecutorConfig,
    IterationStats,
    ModelType,
    Request,
    RequestStatsPerIteration,
    Response,
)
from weft.executor.types.served import check_served
from weft.grammar.base import CompiledGuide
from weft.grammar.vocabulary.tokenizer import Vocabulary

NO_GUIDES = (
    "the request is guided, but the executor was made without a guided_decoding_config; make it with "
    "ExecutorConfig(guided_decoding_config=GuidedDecodingConfig())"
)
NO_VOCABULARY = (
    "guides need a tokenizer; give Executor(tokenizer=...) a directory that has one, or a Vocabulary"
)


class Executor:
    """Serves many requests at once on its own thread, with TensorRT-LLM's Executor API.

    - `Executor(model_path, model_type, executor_config)`: the model is a Hugging Face directory, a GGUF file, a name
      in weft's catalogue, or None (weft-tiny, the model inside the package). Type and config are optional.
    - `Executor(engine_buffer, json_config_str, model_type, executor_config, managed_weights)`: the bytes of a
      safetensors file and the text of its config.json. `managed_weights` are further weights by name.
    - weft's extension for weights in memory: `model` is a dict of tensors under the names of a checkpoint, and
      `config_json` the contents of its config.json (a dict, or a file).

    weft's extensions: `tokenizer` is a directory or a `weft.grammar.Vocabulary`. By default it is the one in the model
    directory; weights in memory without a tokenizer accept only token ids. `device` is "cpu", "cuda" or "auto". `dtype`
    is "auto" (the config's), "float32", "float16" or "bfloat16".

    The executor copies its config and its requests: later assignments to them have no effect. Raises `ModelError`,
    `TokenizerError` or `InputError` for parts that can't be loaded or do not fit together, and for settings that are
    not supported.

    Every method may be called from any thread. After `shutdown` all of them raise `ExecutorError`, except
    `can_enqueue_requests`, `get_kv_cache_event_manager` and `shutdown`. After a failure of the loop the error has a
    cause, the loop's error. Use the executor in a `with` statement, or call `shutdown`.

    `flight_recorder` writes the last iterations on demand; it is None unless `ExecutorConfig.flight_recorder` is set.
    `client` is the `EngineClient` that serves the translated requests.
    """

    @overload
    def __init__(
        self,
        model: str | Path | Mapping[str, Tensor] | None = None,
        model_type: ExecutorConfig | ModelType | None = None,
        executor_config: ExecutorConfig | None = None,
        *,
        model_path: str | Path | None = None,
        config: ExecutorConfig | None = None,
        config_json: str | Path | Mapping[str, Any] | None = None,
        tokenizer: str | Path | Vocabulary | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None: ...

    @overload
    def __init__(
        self,
        engine_buffer: bytes,
        json_config_str: str,
        model_type: ModelType | None = None,
        executor_config: ExecutorConfig | None = None,
        managed_weights: Mapping[str, Any] | None = None,
        *,
        tokenizer: str | Path | Vocabulary | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None: ...

    def __init__(self, *given: Any, device: str = "auto", dtype: str = "auto", **named: Any) -> None:
        arguments = Arguments.read(given, named)
        self.config = config = arguments.config
        check_served(config)
        if config.debug_config is not None:
            names_of(config.debug_config)
        built = BuiltEngine.build(arguments.source, device, dtype, speculation(config), engine_config(config))
        check_room(config, built.config, built.speculation.max_draft_tokens)
        is_guided = config.guided_decoding_config is not None
        if is_guided and built.compiler is None:
            raise InputError(NO_VOCABULARY)
        if is_guided and built.compiler is not None:
            built.compiler.warm_up()
        self.client = client = EngineClient(built, client_limits(config))
        self._guides = Guides(built.compiler if is_guided else None, NO_GUIDES)
        self._translator = Translator(config, built.text, self._guides)
        self._history = History.of(client, config)
        client.observe(self._history.note)
        self._debug_tensors = DebugTensors.of(client, config.debug_config)
        self.flight_recorder = None
        if (recording := config.flight_recorder) is not None:
            try:
                self.flight_recorder = record(client, recording.iterations, recording.directory)
            except BaseException:
                client.close()
                raise

    # -- requests

    def enqueue_request(self, request: Request) -> int:
        """Submit a request and return its number. A request that can't be served gets an error response. Raises
        `CapacityError` if the queue is full (`ExecutorConfig.max_queue_size`, `max_pending_bytes`)."""
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """Submit several requests, all or none, and return their numbers. The same iteration sees all of them. Raises
        `InputError` for anything but a list of valid requests, and `CapacityError` if the queue has no room for all."""
        if not isinstance(requests, Sequence):
            raise InputError(f"requests is a {type(requests).__name__}; give a list of weft.executor.Request")
        for request in requests:
            if not isinstance(request, Request):
                raise InputError(f"a request is a {type(request).__name__}; give weft.executor.Request")
        self.client.check()
        # Copy each request: the caller may change the object and enqueue it again.
        taken = [self._translator.translated(request.snapshot()) for request in requests]
        return [submitted.id for submitted in self.client.submit(taken)]

    def cancel_request(self, id: int) -> None:
        """Cancel a request, keeping its partial answer. Its last response has the finish reason CANCELLED and is not an
        error. Responses stay until they are taken; `drop_request` discards them. Does not wait."""
        self.client.check()
        submitted = self.client.responses.find(id)
        if submitted is not None:
            self.client.cancel([submitted])

    def drop_request(self, request_id: int) -> None:
        """Cancel a request and discard its remaining responses. Later calls with its number get an error response.
        Does nothing if the last response was taken. Does not wait."""
        self.client.check()
        submitted = self.client.responses.find(request_id)
        if submitted is not None:
            self.client.drop([submitted])

    def can_enqueue_requests(self) -> bool:
        """Whether this process may enqueue requests. False after a shutdown or a failure of the loop, and in a fork."""
        try:
            self.client.check()
        except ExecutorError:
            return False
        return True

    def is_participant(self) -> bool:
        """Whether this process takes part in the work: always True, since there is one process."""
        self.client.check()
        return True

    # -- responses

    @overload
    def await_responses(self, id: timedelta) -> list[Response]: ...

    @overload
    def await_responses(
        self, id: int | None = None, timeout: timedelta | float | None = None
    ) -> list[Response]: ...

    @overload
    def await_responses(
        self, id: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    @overload
    def await_responses(
        self, *, ids: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    def await_responses(
        self,
        id: int | Sequence[int] | timedelta | None = None,
        timeout: timedelta | float | None = None,
        *,
        ids: Sequence[int] | None = None,
    ) -> list[Response] | list[list[Response]]:
        """Take the responses that are ready: of all requests, of one (`id`), or of several (`ids`, or a list as first
        argument). For several, the result is a list of lists in the order of the numbers.

        Waits until there is a response, or for several requests until each has one. Waits at most `timeout` seconds (a
        number or a timedelta; None: no limit); after that the result may be empty. A timedelta as first argument is the
        timeout. A request whose last response was taken gives an error response. Raises `InputError` for a number that
        no request has.
        """
        self.client.check_process()
        if isinstance(id, timedelta):
            if timeout is not None:
                raise InputError("two timeouts are given; give id as a number, or leave one out")
            id, timeout = None, id
        if ids is not None:
            if id is not None:
                raise InputError("id and ids are given; give one of the two")
            id = ids
        seconds = seconds_of(timeout)
        if id is None:
            return [
                self._response(submitted, delta)
                for submitted, deltas in self.client.responses.take_any(seconds)
                for delta in deltas
            ]
        if isinstance(id, Sequence) and not isinstance(id, str):
            return self._take(id, seconds)
        return self._take([id], seconds)[0]

    def get_num_responses_ready(self, id: int | None = None) -> int:
        """The number of responses that can be taken now, of one request or of all."""
        self.client.check()
        return self.client.responses.num_ready(id)

    # -- async versions, which do not block the event loop

    async def aenqueue(self, request: Request) -> int:
        """Call `enqueue_request`, which does not wait. It exists for symmetry."""
        return self.enqueue_request(request)

    async def adrop(self, request_id: int) -> None:
        """Call `drop_request`, which does not wait. It exists for symmetry. Iterators of `aresponses` over the request
        end."""
        self.drop_request(request_id)

    async def aresponses(self, request_id: int) -> AsyncIterator[Response]:
        """Yield the responses of a request as they arrive. Closing the iterator early, or cancelling its task, drops
        the request."""
        self.client.check()
        submitted = self.client.responses.find(request_id)
        if submitted is None:
            yield self._gone(request_id)
            return
        async with contextlib.aclosing(self.client.follow(submitted)) as deltas:
            async for delta in deltas:
                yield self._response(submitted, delta)

    # -- guides, statistics, end

    def register_guide(self, name: str, guide: Any) -> Future[CompiledGuide]:
        """Compile a guide (`GuidedDecodingParams`, or anything that `Guide.of` takes) and keep it under a name, for
        requests with `GuidedDecodingParams.handle(name)`.

        Requests may use the name at once. The future gives the compiled guide. If the guide's text is invalid, the
        future and all requests that use the name fail with a `GuideError`. Raises `InputError` without a
        `guided_decoding_config`, and for an invalid name or guide. A guide replaces an earlier one of the same name.
        """
        self.client.check()
        return self._guides.register(name, guide)

    def forget_guide(self, name: str) -> None:
        """Forget a registered guide. Requests that use it continue. Raises `InputError` for an unknown name."""
        self.client.check()
        self._guides.forget(name)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """Take the statistics of the iterations since the last call, at most the last `iter_stats_max_iterations`."""
        self.client.check()
        return self._history.iterations()

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """Take the request statistics of the iterations since the last call, at most the last
        `request_stats_max_iterations`."""
        self.client.check()
        return self._history.requests()

    def get_latest_debug_tensors(self) -> list[DebugTensorsPerIteration]:
        """Take the debug tensors of the iterations since the last call. `ExecutorConfig.debug_config` selects them.
        Empty if they are written to files."""
        self.client.check()
        return self._debug_tensors.take() if self._debug_tensors is not None else []

    def get_kv_cache_event_manager(self) -> KVCacheEventManager | None:
        """The manager of KV cache events; None if `KvCacheConfig.event_buffer_max_size` is 0."""
        log = self.client.engine.kv_events
        return None if log is None else KVCacheEventManager(log)

    def shutdown(self) -> None:
        """Cancel all requests, wake waiting calls and close the engine. Returns when that is done. Waiting calls return
        the last responses; later calls raise `ExecutorError`."""
        self.client.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # -- internal

    def _gone(self, request_id: int) -> Response:
        return terminated(request_id, self.client.responses.was_forgotten(request_id))

    def _take(self, request_ids: Sequence[int], seconds: float | None) -> list[list[Response]]:
        taken = self.client.responses.take(request_ids, seconds)
        return [
            [self._gone(request_id)]
            if submitted is None
            else [self._response(submitted, delta) for delta in deltas]
            for request_id, (submitted, deltas) in zip(request_ids, taken, strict=True)
        ]

    def _response(self, submitted: responses.Response, delta: ResponseDelta) -> Response:
        return response(submitted, delta)
