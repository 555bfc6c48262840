"""Text in, text out: a model directory, its tokenizer, guides and the engine under one roof."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast, overload

from weft.config import EngineConfig, Speculation, package_model_path
from weft.core import Output, Piece, SamplingParams
from weft.engine.lifecycle import Request
from weft.engine.loop import Engine
from weft.engine.sampling_state import MAX_BAD_WORD_TOKENS, TokenRules
from weft.errors import InputError, ModelError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.tokenizer import Vocabulary
from weft.models.base import PagedKV
from weft.models.weights import load_model
from weft.prompts import Prompt, is_prompt, progress, single, spread, token_ids
from weft.runtime import get as get_runtime
from weft.spec.base import DrafterContext
from weft.spec.load import Drafting
from weft.text import RunningText, Speller, decode, load_tokenizer


class LLM:
    """A model that answers prompts, under guides and with speculation.

    `model` is a Hugging Face directory (config.json, safetensors, tokenizer.json); None is weft-tiny, the model inside
    the package. `device` is "cpu", "cuda", or "auto" (CUDA where there is a GPU). `dtype` is "auto" (the config's),
    "float32", "float16" or "bfloat16". Raises `ModelError`, `TokenizerError` or `InputError` for what does not fit.

    One thread at a time works on an LLM; others wait.
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
        self.model_path = Path(model) if model is not None else package_model_path()
        if not self.model_path.is_dir():
            raise ModelError(
                f"{self.model_path}: no such directory; give the directory of a Hugging Face checkpoint"
            )
        self.speculation = speculation if speculation is not None else Speculation.none()
        if not isinstance(self.speculation, Speculation):
            raise InputError(f"speculation is {speculation!r}; give one such as Speculation.eagle3()")
        if not isinstance(engine, EngineConfig | None):
            raise InputError(f"engine is {engine!r}; give an EngineConfig")
        self.runtime = get_runtime(device)
        target = load_model(self.model_path, self.runtime.device, dtype)
        self.tokenizer = load_tokenizer(self.model_path)
        max_drafts = self.speculation.max_draft_tokens
        config = (engine or EngineConfig()).resolved(target.config.max_position_embeddings, max_drafts)
        assert config.num_pages is not None and config.max_seq_len is not None
        drafting = Drafting.load(
            DrafterContext(
                self.speculation,
                self.model_path,
                target,
                num_slots=config.max_batch,
                num_pages=config.num_pages,
                page_size=config.page_size,
                max_seq_len=config.max_seq_len,
            )
        )
        vocabulary = Vocabulary.from_huggingface(
            self.tokenizer, model_path=self.model_path, vocab_size=target.config.vocab_size
        )
        kv = PagedKV.for_model(target, config.num_pages, config.page_size)
        self.config = config
        self._end_ids = tuple(vocabulary.end_ids)
        self._compiler = GuideCompiler(vocabulary)
        self._speller = Speller(self.tokenizer, vocabulary.tokens)
        self._engine = Engine(self.runtime, target, kv, drafting, list(self._end_ids), config)
        self._is_closed = False
        self._lock = threading.RLock()
        if self.runtime.device.type == "cuda":
            self._engine.warm_up()

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
            one = self._request(prompts, single(guide, "guide"), single(sampling, "sampling"))
            output = self._run([one], bar=False)[0]
            if output.error is not None:
                raise output.error
            return output
        many = cast("Sequence[Prompt]", prompts)
        guides = spread(guide, len(many), "guide")
        samplings = spread(sampling, len(many), "sampling")
        requests = [self._request(p, g, s) for p, g, s in zip(many, guides, samplings, strict=True)]
        return self._run(requests, bar=sys.stderr.isatty() and len(requests) > 1)

    def stream(
        self, prompt: Prompt, *, guide: Guide | None = None, sampling: SamplingParams | None = None
    ) -> Iterator[Piece]:
        """Answer one prompt piece by piece, a piece for each iteration; the last carries the whole `output`.

        Closing the iterator cancels the request. A failure raises its error.
        """
        if not is_prompt(prompt):
            raise InputError("stream takes one prompt, as text or token ids; generate takes lists")
        request = self._request(prompt, guide, sampling)
        return self._pieces(request)

    def chat(
        self,
        messages: Sequence[dict[str, str]],
        *,
        guide: Guide | None = None,
        sampling: SamplingParams | None = None,
    ) -> Output:
        """Answer a conversation, rendered by the tokenizer's chat template."""
        return self.generate(self.chat_tokens(messages), guide=guide, sampling=sampling)

    def chat_tokens(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """The token ids of a conversation under the tokenizer's chat template."""
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
        text = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """Compile a guide ahead of its first use, in the pool that compiles for requests."""
        return self._compiler.submit(guide)

    @property
    def num_iterations(self) -> int:
        """Decode iterations run so far."""
        return self._engine.num_iterations

    @property
    def num_graph_replays(self) -> int:
        """Graph replays so far; iterations that were captured and launched with one call."""
        return self._engine.graphs.num_replays

    @property
    def engine(self) -> Engine:
        """The engine beneath."""
        return self._engine

    def warm_up(self) -> None:
        """Capture the graphs in use ahead of the first requests (`Engine.warm_up`); on a GPU this is done at once."""
        with self._lock:
            self._engine.warm_up()

    def close(self) -> None:
        """Cancel what runs and let go of graphs and pages."""
        with self._lock:
            self._is_closed = True
            self._engine.close()
            self._compiler.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- beneath

    def _request(self, prompt: Prompt, guide: Guide | None, sampling: SamplingParams | None) -> Request:
        if self._is_closed:
            raise InputError("the LLM is closed; make a new one")
        sampling = sampling or SamplingParams()
        if not isinstance(sampling, SamplingParams):
            raise InputError(f"sampling is a {type(sampling).__name__}; give a SamplingParams")
        if guide is not None and not isinstance(guide, Guide):
            guide = Guide.of(guide)
        tokens = self._encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        vocab_size = self._engine.parts.model.config.vocab_size
        bad = next((t for t in tokens if not 0 <= t < vocab_size), None)
        if bad is not None:
            raise InputError(f"the prompt holds token id {bad}; ids of this model are 0 to {vocab_size - 1}")
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
        rules = self._rules(sampling, vocab_size)
        words = RunningText(self.tokenizer, sampling.stop_words) if sampling.stop_words else None
        compiled = self._compiler.submit(guide) if guide is not None else None
        return Request(tokens, sampling, seed, rules, words, compiled)

    def _rules(self, sampling: SamplingParams, vocab_size: int) -> TokenRules:
        """What the sampling parameters say in token ids, checked against the vocabulary."""
        words = self._speller.bad_words(sampling.bad_words, MAX_BAD_WORD_TOKENS)
        named = {
            "bad_words": [token for word in words for token in word],
            "stop_token_ids": sampling.stop_token_ids,
            "logit_bias": sampling.logit_bias or {},
        }
        for name, tokens in named.items():
            bad = next((t for t in tokens if not 0 <= t < vocab_size), None)
            if bad is not None:
                raise InputError(f"{name} holds token id {bad}; ids of this model are 0 to {vocab_size - 1}")
        ends = dict.fromkeys((*self._end_ids, *sampling.stop_token_ids)) if sampling.min_tokens else ()
        return TokenRules(tuple(sorted(words)), tuple(ends))

    def _encode(self, prompt: str) -> list[int]:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the prompt is not text that UTF-8 can hold: {error.reason}") from None
        return list(self.tokenizer.encode(prompt, verbose=False))

    def _run(self, requests: list[Request], bar: bool) -> list[Output]:
        with self._lock, progress(len(requests), bar) as advance:
            for request in requests:
                self._engine.submit(request)
            done = 0
            try:
                while done < len(requests):
                    if self._engine.has_work:
                        self._engine.step()
                    finished = sum(request.is_finished for request in requests)
                    advance(finished - done)
                    done = finished
            except BaseException:
                for request in requests:
                    self._engine.cancel(request)
                raise
        return [self._text(request) for request in requests]

    def _pieces(self, request: Request) -> Iterator[Piece]:
        text = RunningText(self.tokenizer, request.sampling.stop_words)
        given = seen = 0
        with self._lock:
            self._engine.submit(request)
        try:
            while True:
                with self._lock:
                    if not request.is_finished:
                        self._engine.step()
                output = request.output
                new, drafted = output.token_ids[seen:], output.drafted[seen:]
                seen += len(new)
                for token in new:
                    text.feed(token)
                if request.is_finished:
                    self._text(request)
                    if output.error is not None:
                        raise output.error
                    yield Piece(output.text[given:], new, drafted, output)
                    return
                yield Piece(text.text[given : text.num_shown], new, drafted)
                given = max(given, text.num_shown)
        finally:
            with self._lock:
                self._engine.cancel(request)

    def _text(self, request: Request) -> Output:
        """Write the answer's text: without the stop word, or the stop token, that ended it."""
        output = request.output
        by, tokens = output.stopped_by, output.token_ids
        output.text = decode(self.tokenizer, tokens[:-1] if isinstance(by, int) else tokens)
        if isinstance(by, str) and isinstance(request.stop_words, RunningText):
            output.text = output.text[: request.stop_words.found_at]
        return output
