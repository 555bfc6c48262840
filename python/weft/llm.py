"""The `LLM`: text in, text out, over a model directory, its tokenizer, guides and an engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Unpack, cast, overload

from weft.client.builder import ModelSource
from weft.client.chat import (
    ChatOptions,
    ChatRequestOptions,
    Conversation,
    chat_tokens,
    is_conversation,
    split_options,
)
from weft.client.client import EngineClient
from weft.client.detokenizer import Detokenizer, Pieces
from weft.client.generation_config import Source, sampling_defaults
from weft.client.options import RequestOptions, requests_of
from weft.client.responses import Response
from weft.config import EngineConfig, Speculation
from weft.core import Output, Piece, SamplingParams
from weft.core.names import LLM_HINTS, MODEL_HINTS, with_attribute_hints, with_hints
from weft.core.prompts import Prompt, is_prompt, progress, single, spread
from weft.core.request import Request
from weft.engine.engine import Engine
from weft.errors import ExecutorError, InputError, RequestError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.models.config import ModelConfig

LEAST_FED, FED_BATCHES = 64, 4
"""A list's prompts are submitted in part: `LEAST_FED` or `FED_BATCHES` full batches at a time, whichever is more."""


@with_attribute_hints(LLM_HINTS)
@with_hints(MODEL_HINTS)
class LLM:
    """A model that answers prompts, with guides and speculation.

    `model` is a Hugging Face directory (config.json, safetensors, tokenizer.json), a GGUF file, a name in weft's
    catalogue, or the name of a hub model (ORG/NAME) in the local cache of Hugging Face; None or "weft-tiny" is the
    model inside the package. `device` is "cpu", "cuda", or "auto" (CUDA if there is a GPU). `dtype` is "auto" (the
    config's), "float32", "float16" or "bfloat16". The CPU computes in float32; there `dtype` is the dtype of the
    weights only ("auto": as in the checkpoint). Raises `ModelError`, `TokenizerError` or `InputError` for parts that
    can't be loaded or do not fit together.

    Requests without `sampling` use `default_sampling_params`. With `generation_config="auto"` they come from the
    directory's generation_config.json, if there is one; with "weft" they are `SamplingParams()`. `config` is the
    engine's resolved `EngineConfig`, and `model_config` is the model's config.

    Thread-safe: requests from several threads share batches. `client` is the `EngineClient` that submits them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        speculation: Speculation | None = None,
        engine: EngineConfig | None = None,
        generation_config: Source = "auto",
    ) -> None:
        source = ModelSource.of(model)
        self.model_path = source.path
        self.sampling_defaults = sampling_defaults(source.path, generation_config)
        self.speculation = speculation if speculation is not None else Speculation.none()
        if not isinstance(self.speculation, Speculation):
            raise InputError(f"speculation is {speculation!r}; give one such as Speculation.eagle3()")
        if not isinstance(engine, EngineConfig | None):
            raise InputError(f"engine is {engine!r}; give an EngineConfig")
        self.client = EngineClient.build(source, device, dtype, self.speculation, engine or EngineConfig())
        built = self.client.built
        assert built.text.vocabulary is not None and built.text.tokenizer is not None  # a directory has them
        self.runtime = built.runtime
        self.tokenizer = built.text.tokenizer
        self.config = built.config
        self._detokenizer = Detokenizer(built.text.tokenizer, built.text.vocabulary)
        self._is_closed = False

    # -- generating

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts too; this comes first
        self,
        prompts: Prompt,
        sampling: SamplingParams | None = None,
        *,
        guide: Any = None,
        **options: Unpack[RequestOptions],
    ) -> Output: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        guide: Any = None,
        **options: Unpack[RequestOptions],
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        guide: Any = None,
        **options: Unpack[RequestOptions],
    ) -> Output | list[Output]:
        """Answer a prompt (an `Output`) or a list of prompts (a list of `Output`s, in their order).

        A prompt is text or token ids. A guide is a `Guide` or a Python type that pydantic knows, as in
        `Guide.json_schema`; `Output.parsed` is then an object of the type. For a list, `guide`, `sampling` and most
        options may be lists of the same length.
        Invalid arguments raise `InputError` or `CapacityError` before any prompt starts. Later, a single prompt that
        fails raises its error. In a list, a failed prompt sets its `output.error`, and the others complete. With
        several sequences (`SamplingParams.n`, `beam_width`), `output.outputs` holds all of them.

        The options are those of `weft.client.options.RequestOptions`: `priority`, `cache_salt`, `timeout_s`,
        `beam_width` with `length_penalty`, `early_stopping` and `diversity_rate`, `given`, `max_drafts`,
        `logits_processor`, `return_context_logits`, `return_generation_logits` and `additional_outputs`.
        """
        if is_prompt(prompts):
            requests = self._asked(
                [prompts], [single(guide, "guide")], [single(sampling, "sampling")], options
            )
            output = self._run(self.client.prepare(requests), bar=False)[0]
            _check(output)
            return output
        many = cast("Sequence[Prompt]", prompts)
        guides = spread(guide, len(many), "guide")
        samplings = spread(sampling, len(many), "sampling")
        requests = self.client.prepare(self._asked(many, guides, samplings, options))
        return self._run(requests, bar=sys.stderr.isatty() and len(requests) > 1)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        guide: Any = None,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Piece]:
        """Stream the answer to one prompt: yield a `Piece` for each iteration of each sequence. The last piece carries
        the complete `output`. The options are those of `generate`, except for beam search.

        The request starts with the first piece, and closing the iterator cancels it. If the request fails, the iterator
        raises its error.
        """
        if not is_prompt(prompt):
            raise InputError("stream takes one prompt, as text or token ids; generate takes lists")
        requests = self._asked([prompt], [guide], [sampling], options, streams=True)
        if requests[0].beam is not None:
            raise InputError("a search by beams has no pieces, since beams change; use generate")
        (request,) = self.client.prepare(requests)
        return self._pieces(request)

    @overload
    def chat(
        self,
        messages: Conversation,
        sampling: SamplingParams | None = None,
        *,
        guide: Any = None,
        **options: Unpack[ChatRequestOptions],
    ) -> Output: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        guide: Any = None,
        **options: Unpack[ChatRequestOptions],
    ) -> list[Output]: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        *,
        guide: Any = None,
        **options: Unpack[ChatRequestOptions],
    ) -> Output | list[Output]:
        """Answer a conversation, or a list of them, rendered by the tokenizer's chat template. Messages have OpenAI's
        form: the content is text or a list of text parts, and messages may hold tool calls and their results.

        The options are those of `generate` and of `weft.client.chat.ChatOptions`: `tools`, `chat_template`,
        `chat_template_kwargs`, `add_generation_prompt` and `continue_final_message`. The template shows `tools` to the
        model; `Guide.tools` constrains the answer to calls of them.
        """
        about_chat, rest = split_options(options)
        if is_conversation(messages):
            prompt = self.chat_tokens(messages, **about_chat)
            one, its_guide = single(sampling, "sampling"), single(guide, "guide")
            return self.generate(prompt, one, guide=its_guide, **rest)
        several = cast("Sequence[Conversation]", messages)
        prompts = [self.chat_tokens(conversation, **about_chat) for conversation in several]
        return self.generate(prompts, sampling, guide=guide, **rest)

    def chat_stream(
        self,
        messages: Conversation,
        sampling: SamplingParams | None = None,
        *,
        guide: Any = None,
        **options: Unpack[ChatRequestOptions],
    ) -> Iterator[Piece]:
        """Stream the answer to one conversation: the options of `chat`, the pieces of `stream`."""
        about_chat, rest = split_options(options)
        return self.stream(self.chat_tokens(messages, **about_chat), sampling, guide=guide, **rest)

    def chat_tokens(self, messages: Conversation, **options: Unpack[ChatOptions]) -> list[int]:
        """The token ids of a conversation rendered by the tokenizer's chat template, with `ChatOptions`."""
        return chat_tokens(self.client.built.text, messages, options, self.model_path)

    @property
    def default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of a request without `sampling`."""
        return SamplingParams(**self.sampling_defaults)

    def compile(self, guide: Any) -> Future[CompiledGuide]:
        """Start to compile a guide (a `Guide` or a Python type) before its first use, in the pool that compiles the
        requests' guides."""
        return self._compiler.submit(Guide.of(guide).of_model(self.tokenizer.chat_template))

    @property
    def num_iterations(self) -> int:
        """The number of decode iterations so far."""
        return self.engine.runner.num_iterations

    @property
    def num_graph_replays(self) -> int:
        """The number of graph replays so far. A replay launches a captured iteration with one call."""
        return self.engine.graphs.num_replays

    @property
    def model_config(self) -> ModelConfig:
        """The model's config: its sizes, as in config.json."""
        return self.client.built.model_config

    @property
    def engine(self) -> Engine:
        """The engine. While requests run, only its thread may use it (`client.call`)."""
        return self.client.engine

    def warm_up(self) -> None:
        """Capture the graphs (`Engine.warm_up`) and import the grammar libraries, so that the first requests do not
        wait for either. On a GPU the constructor captures the graphs already."""
        self.client.warm_up()
        self._compiler.warm_up()

    def close(self) -> None:
        """Cancel all requests and close the engine, which releases its graphs."""
        self._is_closed = True
        self.client.close()
        self._detokenizer.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- internal

    @property
    def _compiler(self) -> GuideCompiler:
        compiler = self.client.compiler
        assert compiler is not None
        return compiler

    def _asked(
        self,
        prompts: Sequence[Prompt],
        guides: Sequence[Any],
        samplings: Sequence[SamplingParams | None],
        options: RequestOptions,
        *,
        streams: bool = False,
    ) -> list[Request]:
        self.client.check_process()
        if self._is_closed:
            raise InputError("the LLM is closed; make a new one")
        default = self.default_sampling_params
        given = [default if sampling is None else sampling for sampling in samplings]
        return requests_of(prompts, guides, given, options, streams=streams)

    def _run(self, requests: Sequence[Request], bar: bool) -> list[Output]:
        """Answer all requests, in their order."""
        # Submit only enough requests to keep the engine busy. A long list, submitted at once, would fill memory and the
        # queue of guides to compile.
        told: SimpleQueue[Response] = SimpleQueue()
        responses: list[Response] = []

        def begin(count: int) -> None:
            responses.extend(self.client.submit(requests[len(responses) : len(responses) + count], told.put))

        with progress(len(requests), bar) as advance:
            try:
                begin(max(LEAST_FED, FED_BATCHES * self.config.max_batch))
                for _ in requests:
                    while not self._is_over(told.get()):
                        pass
                    advance(1)
                    begin(1)
            except BaseException:
                self._drop(responses)
                raise
        return [self._detokenizer.output(response) for response in responses]

    def _is_over(self, response: Response) -> bool:
        """Take the deltas of a request. Returns whether the request has ended."""
        deltas = self.client.responses.take_now(response)
        return deltas is not None and any(delta.is_final for delta in deltas)

    def _pieces(self, request: Request) -> Iterator[Piece]:
        told: SimpleQueue[Response] = SimpleQueue()
        (response,) = self.client.submit([request], told.put)
        pieces = Pieces(self._detokenizer, response)
        try:
            while True:
                for delta in self.client.responses.take_now(told.get()) or ():
                    piece = pieces.piece(delta)
                    if piece.output is not None:
                        _check(piece.output)
                    yield piece
                    if piece.output is not None:
                        return
        finally:
            self._drop([response])

    def _drop(self, responses: Sequence[Response]) -> None:
        with suppress(ExecutorError):  # the client was closed meanwhile, which ended the requests
            self.client.drop(responses)


def _check(output: Output) -> None:
    """Raise the error of a failed request."""
    if isinstance(output.error, RequestError):
        output.error.output = output
    if output.error is not None:
        raise output.error
