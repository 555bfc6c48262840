"""Prepares the requests of all fronts: checks them, converts them to token ids and makes the engine's sequences."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from weft.client.model_text import ModelText
from weft.client.word_rules import WatcherFactory, WordRules
from weft.config import EngineConfig, Speculation
from weft.core.prompts import Prompt, TextTokens
from weft.core.request import Request, TokenRules
from weft.engine.admission import check_options
from weft.engine.sequence import Sequence, sequences_of
from weft.errors import InputError
from weft.grammar.base import CompiledGuide, Opening
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide

Shared = dict[tuple[Any, ...], tuple[TokenRules, WatcherFactory]]


class InputProcessor:
    """Prepares requests for an engine with this `config` and `speculation`. `compiler` compiles their guides. It is
    None without a vocabulary, and then requests with guides are refused. Thread-safe."""

    def __init__(
        self,
        text: ModelText,
        config: EngineConfig,
        speculation: Speculation,
        compiler: GuideCompiler | None = None,
    ) -> None:
        self.text = text
        self.words = WordRules(text, config.max_words, config.max_word_bytes)
        self._config = config
        self._speculation = speculation
        self._compiler = compiler
        ends = text.end_ids if compiler is None else compiler.vocabulary.end_ids
        self._guide_ends = None if set(ends) == set(text.end_ids) else frozenset(ends)

    def prepare(self, requests: Iterable[Request]) -> list[Request]:
        """Check requests and convert them to token ids, without starting any. Raises `InputError` or `CapacityError`
        for the first that can't be served."""
        # Requests with the same sampling parameters share rules and stop words, because a batch often has one set.
        shared: Shared = {}
        return [self._prepare(request, shared) for request in requests]

    def begin(self, request: Request, number: int) -> list[Sequence]:
        """Make the sequences of a prepared request, numbered from `number` on, and start to compile its guide. Raises
        `InputError` for a guide without a vocabulary."""
        return sequences_of(request, number, self._guide(request))

    def _prepare(self, request: Request, shared: Shared) -> Request:
        prompt = self.text.prompt(request.prompt, request.names)
        end_ids = request.end_ids
        if request.guide is not None and end_ids is None:
            end_ids = self._guide_ends  # the end tokens of its grammar; None if they are the model's
        key = (id(request.sampling), id(request.stop_words), end_ids, id(request.bias), request.penalties)
        if key not in shared:
            shared[key] = self._read(request, end_ids)
        rules, watch_stop_words = shared[key]
        given = self.text.expected(request.given, request.names.given) if request.given else ()
        self.text.check(request.names.given, given)
        prepared = replace(
            request,
            prompt=prompt,
            prompt_text=_text_of(request.prompt),
            given=given,
            end_ids=end_ids,
            rules=rules,
            watch_stop_words=watch_stop_words,
            is_prepared=True,
        )
        check_options(prepared, self._config, self._speculation)
        return prepared

    def _read(self, request: Request, end_ids: frozenset[int] | None) -> tuple[TokenRules, WatcherFactory]:
        sampling, words = request.sampling, request.watched_words
        stop_words = self.words.stop_words(words, request.names)
        return self.words.rules(sampling, end_ids, request.bias, request.penalties, request.names), stop_words

    def _guide(self, request: Request) -> Future[CompiledGuide] | None:
        guide, client = request.guide, request.client_id
        if guide is None:
            return None
        if self._compiler is None:
            raise InputError(
                "guides need a vocabulary; give a model directory with a tokenizer, or ModelSource(guides=...)"
            )
        if isinstance(guide, Guide):
            compiled = self._compiler.submit(guide.of_model(self.text.chat_template), client)
        else:
            compiled = guide
        if request.sampling.on_length == "close":
            compiled = self._compiler.submit_closing(compiled, client)
        return self._compiler.open(compiled, Opening(request.prompt_ids))


def _text_of(prompt: Prompt) -> str | None:
    if isinstance(prompt, str):
        return prompt
    return prompt.text if isinstance(prompt, TextTokens) else None
