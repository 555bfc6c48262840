"""Text in, text out: a model directory, its tokenizer, guides and the engine under one roof."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Unpack, cast, overload

from weft.client.builder import ModelSource
from weft.client.chat import Message, chat_tokens
from weft.client.client import EngineClient
from weft.client.detokenizer import Detokenizer, Pieces
from weft.client.engine_requests import PreparedRequest
from weft.client.handles import RequestHandle
from weft.client.options import RequestOptions, generation_requests
from weft.client.request import GenerationRequest
from weft.config import EngineConfig, Speculation
from weft.core import Output, Piece, SamplingParams
from weft.engine.engine import Engine
from weft.errors import ExecutorError, InputError, RequestError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.prompts import Prompt, is_prompt, progress, single, spread

LEAST_FED, FED_BATCHES = 64, 4
"""Of a list of prompts as many are with the engine at a time, or as many batches, if that is more."""


class LLM:
    """A model that answers prompts, under guides and with speculation.

    `model` is a Hugging Face directory (config.json, safetensors, tokenizer.json); None or "weft-tiny" is the model
    inside the package. `device` is "cpu", "cuda", or "auto" (CUDA where there is a GPU). `dtype` is "auto" (the
    config's), "float32", "float16" or "bfloat16"; the CPU computes in float32, and its dtype is that of the weights
    alone ("auto": as they are stored). Raises `ModelError`, `TokenizerError` or `InputError` for what does not fit.

    Many threads may use an LLM at once: their requests run together, in one batch. `client` is what submits them.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        speculation: Speculation | None = None,
        engine: EngineConfig | None = None,
    ) -> None:
        source = ModelSource.of(model)
        self.model_path = source.path
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
        *,
        guide: Guide | None = None,
        sampling: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> Output: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        guide: Guide | Sequence[Guide | None] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        guide: Guide | Sequence[Guide | None] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> Output | list[Output]:
        """Answer a prompt (an `Output`) or a list of prompts (a list of `Output`s, in their order).

        A prompt is text or token ids. For a list, `guide`, `sampling` and the options may be lists of the same length.
        A failed prompt of a list has `output.error` set and the others are whole; a failed single one raises its error.
        Where several sequences are asked for (`SamplingParams.n`, `beam_width`), `output.outputs` are all of them.

        The options are those of `weft.client.options.RequestOptions`: `priority`, `timeout_s`, `beam_width` with
        `length_penalty`, `early_stopping` and `diversity_rate`, `given`, `max_drafts`, `logits_processor`,
        `return_context_logits`, `return_generation_logits` and `additional_outputs`.
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
        prepared = self.client.prepare(self._asked(many, guides, samplings, options))
        return self._run(prepared, bar=sys.stderr.isatty() and len(prepared) > 1)

    def stream(
        self,
        prompt: Prompt,
        *,
        guide: Guide | None = None,
        sampling: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> Iterator[Piece]:
        """Answer one prompt piece by piece, a piece for each iteration; the last carries the whole `output`. The
        options are those of `generate`, without beams.

        Closing the iterator cancels the request. A failure raises its error.
        """
        if not is_prompt(prompt):
            raise InputError("stream takes one prompt, as text or token ids; generate takes lists")
        requests = self._asked([prompt], [guide], [sampling], options, streams=True)
        if requests[0].beam is not None:
            raise InputError("a search by beams has no pieces, since beams change; use generate")
        (prepared,) = self.client.prepare(requests)
        return self._pieces(prepared)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        guide: Guide | None = None,
        sampling: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> Output:
        """Answer a conversation, rendered by the tokenizer's chat template, which is told of `tools`; what an answer
        looks like that calls them is `Guide.tools`. The options are those of `generate`."""
        prompt = self.chat_tokens(messages, tools=tools)
        return self.generate(prompt, guide=guide, sampling=sampling, **options)

    def chat_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The token ids of a conversation under the tokenizer's chat template. `tools` are as in `Guide.tools`."""
        return chat_tokens(self.client.built.text, messages, tools, self.model_path)

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """Compile a guide ahead of its first use, in the pool that compiles for requests."""
        return self._compiler.submit(guide)

    @property
    def num_iterations(self) -> int:
        """Decode iterations run so far."""
        return self.engine.runner.num_iterations

    @property
    def num_graph_replays(self) -> int:
        """Graph replays so far; iterations that were captured and launched with one call."""
        return self.engine.graphs.num_replays

    @property
    def engine(self) -> Engine:
        """The engine beneath. While requests run, it is its thread's."""
        return self.client.engine

    def warm_up(self) -> None:
        """Capture the graphs in use ahead of the first requests (`Engine.warm_up`); on a GPU this is done at once."""
        self.client.warm_up()

    def close(self) -> None:
        """Cancel what runs and let go of graphs and pages."""
        self._is_closed = True
        self.client.close()
        self._detokenizer.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- beneath

    @property
    def _compiler(self) -> GuideCompiler:
        compiler = self.client.compiler
        assert compiler is not None
        return compiler

    def _asked(
        self,
        prompts: Sequence[Prompt],
        guides: Sequence[Guide | None],
        samplings: Sequence[SamplingParams | None],
        options: RequestOptions,
        *,
        streams: bool = False,
    ) -> list[GenerationRequest]:
        self.client.check_process()
        if self._is_closed:
            raise InputError("the LLM is closed; make a new one")
        return generation_requests(prompts, guides, samplings, options, streams=streams)

    def _run(self, prepared: Sequence[PreparedRequest], bar: bool) -> list[Output]:
        """Answer them all, in their order. As many are with the engine as keep it busy: a long list takes neither its
        memory, nor the places of guides that wait to be compiled."""
        told: SimpleQueue[RequestHandle] = SimpleQueue()
        handles: list[RequestHandle] = []

        def begin(count: int) -> None:
            handles.extend(self.client.submit(prepared[len(handles) : len(handles) + count], told.put))

        with progress(len(prepared), bar) as advance:
            try:
                begin(max(LEAST_FED, FED_BATCHES * self.config.max_batch))
                for _ in prepared:
                    while not self._is_over(told.get()):
                        pass
                    advance(1)
                    begin(1)
            except BaseException:
                self._drop(handles)
                raise
        return [self._detokenizer.output(handle) for handle in handles]

    def _is_over(self, handle: RequestHandle) -> bool:
        """Whether what came of a request is the last of it."""
        deltas = self.client.responses.take_now(handle)
        return deltas is not None and any(delta.is_final for delta in deltas)

    def _pieces(self, prepared: PreparedRequest) -> Iterator[Piece]:
        told: SimpleQueue[RequestHandle] = SimpleQueue()
        (handle,) = self.client.submit([prepared], told.put)
        pieces = Pieces(self._detokenizer, handle)
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
            self._drop([handle])

    def _drop(self, handles: Sequence[RequestHandle]) -> None:
        with suppress(ExecutorError):  # closed meanwhile, and they with it
            self.client.drop(handles)


def _check(output: Output) -> None:
    """Raise what a request failed with."""
    if isinstance(output.error, RequestError):
        output.error.output = output
    if output.error is not None:
        raise output.error
