"""Text in, text out: a model directory, its tokenizer, guides and the engine under one roof."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast, overload

from weft.config import EngineConfig, Speculation
from weft.core import Output, Piece, SamplingParams
from weft.engine.engine import Engine
from weft.engine.request import Request
from weft.errors import ExecutorError, InputError, RequestError
from weft.executor.asked import Asked, Rules, num_fed
from weft.executor.assembly import Assembly, Source
from weft.executor.executor import Executor
from weft.executor.types import ExecutorConfig
from weft.grammar.base import CompiledGuide, Opening
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.compile.verdict import Verdicts, asked_of
from weft.grammar.guide import Guide
from weft.prompts import Prompt, is_prompt, progress, single, spread
from weft.text import RunningText, decode

DEFAULT = SamplingParams()


class LLM:
    """A model that answers prompts, under guides and with speculation.

    `model` is a Hugging Face directory (config.json, safetensors, tokenizer.json); None or "weft-tiny" is the model
    inside the package. `device` is "cpu", "cuda", or "auto" (CUDA where there is a GPU). `dtype` is "auto" (the
    config's), "float32", "float16" or "bfloat16". Raises `ModelError`, `TokenizerError` or `InputError` for what does
    not fit.

    Many threads may use an LLM at once: their requests run together, in one batch.
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
        source = Source.of(model)
        self.model_path = source.path
        self.speculation = speculation if speculation is not None else Speculation.none()
        if not isinstance(self.speculation, Speculation):
            raise InputError(f"speculation is {speculation!r}; give one such as Speculation.eagle3()")
        if not isinstance(engine, EngineConfig | None):
            raise InputError(f"engine is {engine!r}; give an EngineConfig")
        built = Assembly.build(source, device, dtype, self.speculation, engine or EngineConfig())
        assert built.compiler is not None and built.words.tokenizer is not None  # a directory has a tokenizer
        self.runtime = built.runtime
        self.tokenizer = built.words.tokenizer
        self.config = built.config
        self._words = built.words
        self._compiler: GuideCompiler = built.compiler
        self._executor = Executor._over(built, ExecutorConfig(iter_stats_max_iterations=0))
        self._verdicts = Verdicts()
        self._is_closed = False

    # -- generating

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts too; this comes first
        self, prompts: Prompt, *, guide: Guide | None = None, sampling: SamplingParams | None = None
    ) -> Output: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        guide: Guide | Sequence[Guide | None] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        guide: Guide | Sequence[Guide | None] | None = None,
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
    ) -> Output | list[Output]:
        """Answer a prompt (an `Output`) or a list of prompts (a list of `Output`s, in their order).

        A prompt is text or token ids. For a list, `guide` and `sampling` may be lists of the same length. A failed
        prompt of a list has `output.error` set and the others are whole; a failed single one raises its error.
        """
        if is_prompt(prompts):
            one = self._ask(prompts, single(guide, "guide"), single(sampling, "sampling"))
            output = self._run([one], bar=False)[0]
            _check(output)
            return output
        many = cast("Sequence[Prompt]", prompts)
        guides = spread(guide, len(many), "guide")
        samplings = spread(sampling, len(many), "sampling")
        shared: dict[int, Rules] = {}
        asked = [self._ask(p, g, s, shared) for p, g, s in zip(many, guides, samplings, strict=True)]
        return self._run(asked, bar=sys.stderr.isatty() and len(asked) > 1)

    def stream(
        self, prompt: Prompt, *, guide: Guide | None = None, sampling: SamplingParams | None = None
    ) -> Iterator[Piece]:
        """Answer one prompt piece by piece, a piece for each iteration; the last carries the whole `output`.

        Closing the iterator cancels the request. A failure raises its error.
        """
        if not is_prompt(prompt):
            raise InputError("stream takes one prompt, as text or token ids; generate takes lists")
        asked = self._ask(prompt, guide, sampling)
        return self._pieces(self._request(asked), asked.guide)

    def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        guide: Guide | None = None,
        sampling: SamplingParams | None = None,
    ) -> Output:
        """Answer a conversation, rendered by the tokenizer's chat template, which is told of `tools`; what an answer
        looks like that calls them is `Guide.tools`."""
        return self.generate(self.chat_tokens(messages, tools=tools), guide=guide, sampling=sampling)

    def chat_tokens(
        self, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The token ids of a conversation under the tokenizer's chat template. `tools` are as in `Guide.tools`."""
        if not self.tokenizer.chat_template:
            raise InputError(
                f"{self.model_path}: the tokenizer has no chat template; use generate with a text"
            )
        fits = isinstance(messages, Sequence) and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
        if not (messages and fits):
            raise InputError(
                'messages must be a list of {"role": ..., "content": ...}, both texts, and not empty'
            )
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tools=None if tools is None else list(tools),
            add_generation_prompt=True,
            tokenize=False,
        )
        self._words.check_text(text)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """Compile a guide ahead of its first use, in the pool that compiles for requests."""
        return self._compiler.submit(guide)

    @property
    def num_iterations(self) -> int:
        """Decode iterations run so far."""
        return self.engine.num_iterations

    @property
    def num_graph_replays(self) -> int:
        """Graph replays so far; iterations that were captured and launched with one call."""
        return self.engine.graphs.num_replays

    @property
    def engine(self) -> Engine:
        """The engine beneath. While requests run, it is its thread's."""
        return self._executor.assembly.engine

    def warm_up(self) -> None:
        """Capture the graphs in use ahead of the first requests (`Engine.warm_up`); on a GPU this is done at once."""
        self._executor._call(self.engine.warm_up)

    def close(self) -> None:
        """Cancel what runs and let go of graphs and pages."""
        self._is_closed = True
        self._executor.shutdown()
        self._verdicts.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- beneath

    def _ask(
        self,
        prompt: Prompt,
        guide: Guide | None,
        sampling: SamplingParams | None,
        shared: dict[int, Rules] | None = None,
    ) -> Asked:
        """What is asked, checked, of which nothing is begun. `shared` are the rules of the sampling parameters that
        others have too, by their identity."""
        self._executor._worker.home.check()
        if self._is_closed:
            raise InputError("the LLM is closed; make a new one")
        sampling = sampling if sampling is not None else DEFAULT
        if not isinstance(sampling, SamplingParams):
            raise InputError(f"sampling is a {type(sampling).__name__}; give a SamplingParams")
        if guide is not None and not isinstance(guide, Guide):
            guide = Guide.of(guide)
        tokens = self._words.prompt(prompt)
        rules = shared.get(id(sampling)) if shared is not None else None
        if rules is None:
            rules = self._words.rules(sampling), self._words.stop_words("stop", sampling.stop_words)
            if shared is not None:
                shared[id(sampling)] = rules
        return Asked(tokens, sampling, guide, *rules)

    def _request(self, asked: Asked) -> Request:
        """Begin: from here on it costs, its guide is compiled."""
        sampling, compiled = asked.sampling, None
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        if asked.guide is not None:
            compiled = self._compiler.submit(asked.guide)
            if sampling.on_length == "close":
                compiled = self._compiler.submit_closing(compiled)
            compiled = self._compiler.open(compiled, Opening(asked.tokens))
        return Request(asked.tokens, sampling, seed, asked.rules, asked.stops(), compiled)

    def _run(self, asked: Sequence[Asked], bar: bool) -> list[Output]:
        """Answer them all, in their order. As many are with the engine as keep it busy: a long list takes neither its
        memory, nor the places of guides that wait to be compiled."""
        ended: SimpleQueue[Request] = SimpleQueue()
        requests: list[Request] = []

        def begin(count: int) -> None:
            new = [self._request(one) for one in asked[len(requests) : len(requests) + count]]
            for request in new:
                request.on_progress, request.is_watched = ended.put, False
            requests.extend(new)
            self._executor._submit(new)

        with progress(len(asked), bar) as advance:
            try:
                begin(num_fed(self.config.max_batch))
                for _ in asked:
                    ended.get()
                    advance(1)
                    begin(1)
            except BaseException:
                self._cancel(requests)
                raise
        return [self._text(request, one.guide) for request, one in zip(requests, asked, strict=True)]

    def _pieces(self, request: Request, guide: Guide | None) -> Iterator[Piece]:
        watcher = request.stop_words
        text = RunningText(self.tokenizer, watcher.words if isinstance(watcher, RunningText) else ())
        given = seen = 0
        came: SimpleQueue[tuple[int, bool]] = SimpleQueue()
        output = request.output

        def tell(request: Request) -> None:
            came.put((len(output.token_ids), request.is_finished))

        request.on_progress = tell
        try:
            self._executor._submit([request])
            is_finished = False
            while not is_finished:
                end, is_finished = came.get()
                new, drafted = output.token_ids[seen:end], output.drafted[seen:end]
                seen = end
                for token in new:
                    text.feed(token)
                if is_finished:
                    self._text(request, guide)
                    _check(output)
                    yield Piece(output.text[given:], new, drafted, output)
                else:
                    yield Piece(text.text[given : text.num_shown], new, drafted)
                    given = max(given, text.num_shown)
        finally:
            self._cancel([request])

    def _cancel(self, requests: list[Request]) -> None:
        left = [request for request in requests if not request.is_finished]
        if left:
            with suppress(ExecutorError):  # closed meanwhile, and they with it
                self._executor._cancel(left)

    def _text(self, request: Request, guide: Guide | None) -> Output:
        """Write the answer's text: without the stop word, or the stop token, that ended it. Where its guide was
        not to be enforced whole, ask whether it obeys it all the same."""
        output = request.output
        by, tokens = output.stopped_by, output.token_ids
        output.text = decode(self.tokenizer, tokens[:-1] if isinstance(by, int) else tokens)
        if isinstance(by, str) and isinstance(request.stop_words, RunningText):
            output.text = output.text[: request.stop_words.found_at]
        if output.stats.guided_valid and isinstance(guide, Guide):
            asked = asked_of(guide, output.text, tokens, self._compiler.vocabulary, self._decode)
            if asked is not None:
                output.stats.guided_valid = self._verdicts.obeys(*asked)
        return output

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode(self.tokenizer, tokens)


def _check(output: Output) -> None:
    """Raise what a request failed with."""
    if isinstance(output.error, RequestError):
        output.error.output = output
    if output.error is not None:
        raise output.error
