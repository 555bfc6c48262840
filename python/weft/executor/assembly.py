"""An engine and what it is made of: weights from a directory or from memory, tokenizer, drafters, guide compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.config import EngineConfig, Speculation, model_directory, package_model_path
from weft.engine.engine import Engine
from weft.engine.flight_recorder import FlightRecorder
from weft.errors import InputError, TokenizerError
from weft.executor.words import Words
from weft.files import read_json
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.base import Model, PagedKV
from weft.models.weights import load_model, model_in_memory
from weft.runtime import get as get_runtime
from weft.runtime.interface import Runtime
from weft.spec.base import DrafterContext
from weft.spec.load import Drafting
from weft.text import load_tokenizer

IN_MEMORY = Path("weights in memory")


@dataclass(frozen=True)
class Source:
    """Where a model and its words come from. Make one with `of`."""

    path: Path
    tensors: Mapping[str, Tensor] | None = None
    config_json: Mapping[str, Any] | None = None
    tokenizer: Path | Vocabulary | None = None

    @classmethod
    def of(
        cls,
        model: str | Path | Mapping[str, Tensor] | None,
        config_json: str | Path | Mapping[str, Any] | None = None,
        tokenizer: str | Path | Vocabulary | None = None,
    ) -> Source:
        """A model directory (None or its name: weft-tiny), whose tokenizer is `tokenizer` or its own; or tensors in
        memory, with what their config.json says, as a dict or a file."""
        if not isinstance(tokenizer, str | Path | Vocabulary | None):
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}; give a directory or a Vocabulary")
        words = Path(tokenizer) if isinstance(tokenizer, str) else tokenizer
        if isinstance(model, Mapping):
            if config_json is None:
                raise InputError(
                    "weights in memory need config_json: the contents of their config.json, or its path"
                )
            data = config_json if isinstance(config_json, Mapping) else read_json(Path(config_json))
            return cls(IN_MEMORY, model, data, words)
        if config_json is not None:
            raise InputError("config_json is for weights in memory; a model directory has its config.json")
        if not isinstance(model, str | Path | None):
            raise InputError(
                f"model is a {type(model).__name__}; give a directory, None, or a dict of tensors"
            )
        path = model_directory(model)
        return cls(path, tokenizer=words if words is not None else path)

    def load(self, runtime: Runtime, dtype: str) -> Model:
        """The model, on the runtime's device."""
        if self.tensors is None:
            return load_model(self.path, runtime.device, dtype)
        assert self.config_json is not None
        return model_in_memory(self.tensors, self.config_json, runtime.device, dtype, self.path)

    def words(self, vocab_size: int) -> Words:
        """Its tokenizer and vocabulary; where there is none, what config.json says of ends."""
        if isinstance(self.tokenizer, Vocabulary):
            size = self.tokenizer.vocab_size
            if size != vocab_size:
                raise TokenizerError(f"the Vocabulary has {size} tokens, but the model has {vocab_size}")
            return Words(vocab_size, tuple(self.tokenizer.end_ids), self.tokenizer)
        if self.tokenizer is None:
            given = (self.config_json or {}).get("eos_token_id")
            ends: list[Any] = given if isinstance(given, list) else [given]
            if not ends or not all(isinstance(end, int) and 0 <= end < vocab_size for end in ends):
                raise TokenizerError(
                    f"{self.path}: config.json's eos_token_id is {given!r}; give the ids of the tokens that end a "
                    "text, or a tokenizer"
                )
            return Words(vocab_size, tuple(ends))
        tokenizer = load_tokenizer(self.tokenizer)
        files = self.path if self.tensors is None else self.tokenizer
        vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=files, vocab_size=vocab_size)
        return Words(vocab_size, tuple(vocabulary.end_ids), vocabulary, tokenizer)


@dataclass(frozen=True)
class Assembly:
    """A built engine. `compiler` compiles guides for its vocabulary; None where it has none."""

    path: Path
    runtime: Runtime
    speculation: Speculation
    config: EngineConfig
    words: Words
    compiler: GuideCompiler | None
    engine: Engine

    @property
    def warms_up(self) -> bool:
        """Whether the engine is to warm up before its first request; its thread does it."""
        return self.runtime.device.type == "cuda"

    def record(self, iterations: int, directory: str | None) -> FlightRecorder:
        """Let the engine, which is idle, keep its last iterations, and write them into `directory` when a request
        fails."""
        if self.words.vocabulary is None:
            raise InputError("a flight recorder needs a vocabulary; give the executor a tokenizer")
        proposals = self.engine.lane.proposals
        recorder = FlightRecorder(
            self.engine.lane.state,
            self.words.vocabulary,
            model=None if self.path == package_model_path() else str(self.path),
            sources=tuple(proposals.counters().tokens) if proposals is not None else (),
            iterations=iterations,
            directory=directory,
        )
        self.engine.record(recorder)
        return recorder

    @classmethod
    def build(
        cls, source: Source, device: str, dtype: str, speculation: Speculation, config: EngineConfig
    ) -> Assembly:
        """Load and wire everything. Raises `ModelError`, `TokenizerError` or `InputError` for what does not fit."""
        runtime = get_runtime(device)
        target = source.load(runtime, dtype)
        words = source.words(target.config.vocab_size)
        config = config.resolved(target.config.max_position_embeddings, speculation.max_draft_tokens)
        assert config.num_pages is not None and config.max_seq_len is not None
        words = replace(
            words,
            max_seq_len=config.max_seq_len,
            max_words=config.max_words,
            max_word_bytes=config.max_word_bytes,
        )
        context = DrafterContext(
            speculation,
            source.path,
            target,
            num_slots=config.max_batch,
            num_pages=config.num_pages,
            page_size=config.page_size,
            max_seq_len=config.max_seq_len,
            tokenizer=words.tokenizer or words.vocabulary,
        )
        drafting = Drafting.load(context)
        kv = PagedKV.for_model(target, config.num_pages, config.page_size)
        engine = Engine(runtime, target, kv, drafting, list(words.end_ids), config)
        compiler = (
            GuideCompiler(words.vocabulary, backend=config.grammar, untrusted=config.untrusted_guides)
            if words.vocabulary is not None
            else None
        )
        return cls(source.path, runtime, speculation, config, words, compiler, engine)
