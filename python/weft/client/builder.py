"""Builds an engine with its model, tokenizer, drafters and guide compiler, from a directory or from tensors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from weft.client.model_text import ModelText
from weft.config import EngineConfig, ResolvedConfig, Speculation, model_directory
from weft.core.files import read_json
from weft.engine.admission import can_grow
from weft.engine.build import build_engine, state_sizes
from weft.engine.device.state import caches_of
from weft.engine.engine import Engine
from weft.engine.kv.size import DeviceMemory, pages_in_memory, windowed_pages
from weft.errors import InputError, TokenizerError
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.vocabulary.materials import VocabularyMaterials
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.architectures import parse_config, read_config
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig, cache_dtype
from weft.models.in_memory import model_in_memory
from weft.models.loading import load_model
from weft.models.states import state_bytes
from weft.models.windows import layer_windows
from weft.ops.attention import NO_WINDOW, Window
from weft.runtime import get as get_runtime
from weft.runtime.interface import Runtime
from weft.spec.base import DrafterContext
from weft.spec.load import Drafting
from weft.tokenizer.files import load_tokenizer

_log = logging.getLogger(__name__)

IN_MEMORY = Path("weights in memory")


@dataclass(frozen=True)
class ModelSource:
    """The source of a model and its tokenizer: the directory `path`, or `tensors` with the contents `config_json` of
    their config.json. Guides are compiled for the vocabulary `guides` (None: the tokenizer's). `of` makes a source."""

    path: Path
    tensors: Mapping[str, Tensor] | None = None
    config_json: Mapping[str, Any] | None = None
    tokenizer: Path | Vocabulary | None = None
    guides: Vocabulary | VocabularyMaterials | None = None

    @classmethod
    def of(
        cls,
        model: str | Path | Mapping[str, Tensor] | None,
        config_json: str | Path | Mapping[str, Any] | None = None,
        tokenizer: str | Path | Vocabulary | None = None,
        guides: Vocabulary | VocabularyMaterials | None = None,
    ) -> ModelSource:
        """Make a source from a model directory or from tensors in memory. `model` may also be a name in the catalogue;
        None or "weft-tiny" is the model in the package.

        The tokenizer of a directory is `tokenizer` or, by default, the one in the directory. Tensors in memory need
        `config_json`: the contents of their config.json, or its path. Guides are compiled for the tokenizer's
        vocabulary, or for `guides`, whose end tokens then end guided answers. Raises `ModelError` for a directory or
        file that is missing, and `InputError` for other types or combinations."""
        if not isinstance(tokenizer, str | Path | Vocabulary | None):
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}; give a directory or a Vocabulary")
        if not isinstance(guides, Vocabulary | VocabularyMaterials | None):
            raise InputError(f"guides is a {type(guides).__name__}; give a Vocabulary or VocabularyMaterials")
        words = Path(tokenizer) if isinstance(tokenizer, str) else tokenizer
        if isinstance(model, Mapping):
            if config_json is None:
                raise InputError(
                    "weights in memory need config_json: the contents of their config.json, or its path"
                )
            data = config_json if isinstance(config_json, Mapping) else read_json(Path(config_json))
            return cls(IN_MEMORY, model, data, words, guides)
        if config_json is not None:
            raise InputError("config_json is for weights in memory; a model directory has its config.json")
        if not isinstance(model, str | Path | None):
            raise InputError(
                f"model is a {type(model).__name__}; give a directory, None, or a dict of tensors"
            )
        path = model_directory(model)
        return cls(path, tokenizer=words if words is not None else path, guides=guides)

    def model_config(self) -> ModelConfig:
        """The model's config. Raises `ModelError`."""
        if self.tensors is None:
            return read_config(self.path)[1]
        assert self.config_json is not None
        return parse_config(self.config_json, f"{self.path}: config.json")[1]

    def load(self, runtime: Runtime, dtype: str, config: ResolvedConfig) -> Model:
        """Load the model onto the runtime's device, for an engine with `config`."""
        device, length, activations = runtime.device, config.max_seq_len, config.activation_dtype
        if self.tensors is None:
            return load_model(self.path, device, dtype, length, activation_dtype=activations)
        assert self.config_json is not None
        return model_in_memory(self.tensors, self.config_json, device, dtype, self.path, length, activations)

    def text(self, vocab_size: int, max_seq_len: int | None) -> ModelText:
        """The model's tokenizer and vocabulary. Without a tokenizer, the end tokens are those of config.json or, if it
        has none, those of `guides`. Raises `TokenizerError` without valid end tokens, and for a tokenizer that can't be
        loaded or does not fit the model."""
        if isinstance(self.tokenizer, Vocabulary):
            _check_size(self.tokenizer, vocab_size)
            ends = tuple(self.tokenizer.end_ids)
            return ModelText(vocab_size, ends, self.tokenizer, max_seq_len=max_seq_len)
        if self.tokenizer is None:
            return self._untokenized(vocab_size, max_seq_len)
        tokenizer = load_tokenizer(self.tokenizer)
        files = self.path if self.tensors is None else self.tokenizer
        vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=files, vocab_size=vocab_size)
        return ModelText(vocab_size, tuple(vocabulary.end_ids), vocabulary, tokenizer, max_seq_len)

    def guide_vocabulary(self, text: ModelText) -> Vocabulary | None:
        """The vocabulary that guides are compiled for; None if there is none. `text` is the model's `ModelText`. Raises
        `TokenizerError` for a vocabulary that does not fit the model."""
        if self.guides is None:
            return text.vocabulary
        if isinstance(self.guides, VocabularyMaterials):
            return self.guides.vocabulary(text.vocab_size, end_ids=text.end_ids)
        _check_size(self.guides, text.vocab_size)
        return self.guides

    def _untokenized(self, vocab_size: int, max_seq_len: int | None) -> ModelText:
        given = (self.config_json or {}).get("eos_token_id")
        listed: list[Any] = given if isinstance(given, list) else [given]
        if listed and all(isinstance(end, int) and 0 <= end < vocab_size for end in listed):
            return ModelText(vocab_size, tuple(listed), max_seq_len=max_seq_len)
        guides = self.guides
        ends = guides.stop_token_ids if isinstance(guides, VocabularyMaterials) else guides and guides.end_ids
        if ends and given is None:
            return ModelText(vocab_size, tuple(ends), max_seq_len=max_seq_len)
        raise TokenizerError(
            f"{self.path}: config.json's eos_token_id is {given!r}; give the ids of the tokens that end a text, or a "
            "tokenizer"
        )


def _check_size(vocabulary: Vocabulary, vocab_size: int) -> None:
    if vocabulary.vocab_size != vocab_size:
        raise TokenizerError(
            f"the Vocabulary has {vocabulary.vocab_size} tokens, but the model has {vocab_size}"
        )


@dataclass(frozen=True)
class BuiltEngine:
    """An engine and its parts. `compiler` compiles guides for the vocabulary; None without a vocabulary."""

    path: Path
    runtime: Runtime
    speculation: Speculation
    config: ResolvedConfig
    text: ModelText
    compiler: GuideCompiler | None
    engine: Engine
    model_config: ModelConfig

    @property
    def warms_up(self) -> bool:
        """Whether the engine's thread warms up before the first request: on CUDA."""
        return self.runtime.device.type == "cuda"

    @classmethod
    def build(
        cls, source: ModelSource, device: str, dtype: str, speculation: Speculation, settings: EngineConfig
    ) -> BuiltEngine:
        """Load the model and build the engine. Raises `ModelError`, `TokenizerError` or `InputError` for parts that
        can't be loaded or do not fit together."""
        runtime = get_runtime(device)
        parsed, num_drafts = source.model_config(), speculation.max_draft_tokens
        limit = parsed.max_position_embeddings
        config = settings.resolved(limit, num_drafts, runtime.device.type, parsed.has_states)
        target = source.load(runtime, dtype, config)
        # The free memory is known only after all weights, the drafters' too, are loaded. Until then, use one page.
        is_sized_by_memory = settings.num_pages is None or config.is_sized_by_memory
        num_pages = 1 if is_sized_by_memory else config.num_pages
        windows = layer_windows(
            target.config, config.attention_windows, config.sink_tokens, config.max_seq_len
        )
        text = source.text(target.config.vocab_size, config.max_seq_len)
        vocabulary = source.guide_vocabulary(text)
        text = replace(text, can_grow=can_grow(target.config, config.max_seq_len))
        kv_dtype = cache_dtype(target.config, runtime.device, config.kv_cache_dtype)
        context = DrafterContext(
            speculation,
            source.path,
            target,
            num_slots=config.max_batch,
            num_pages=num_pages,
            page_size=config.page_size,
            max_seq_len=config.max_seq_len,
            tokenizer=text.tokenizer or text.vocabulary or vocabulary,
            kv_dtype=kv_dtype,
        )
        drafting = Drafting.load(context)
        memories = target.config.layer_memories
        page_windows = [window for memory, window in zip(memories, windows, strict=True) if memory.pages]
        if drafting.drafter is not None and drafting.drafter.kv is not None:
            page_windows.append(NO_WINDOW)  # whatever its own windows are
        if speculation.lookahead_sizes is not None:  # its forward reads rows of its own
            page_windows = []
        num_windowed = 0 if is_sized_by_memory else windowed_pages(config, page_windows, num_drafts)
        kv = PagedKV.for_model(
            target, num_pages, config.page_size, windows, num_windowed=num_windowed, dtype=kv_dtype
        )
        if is_sized_by_memory:
            caches = caches_of(kv, drafting.drafter)
            wanted = config.num_pages
            states = state_bytes(memories, *state_sizes(config, speculation))
            config = sized_by_memory(
                runtime, caches, config, settings.num_pages, num_drafts, page_windows, states
            )
            if config.num_pages < wanted:
                _log.warning(
                    "the memory for keys and values holds %d tokens, not the %d of max_batch requests of max_seq_len "
                    "tokens; requests beyond that wait for others",
                    (config.num_pages - 1) * config.page_size,
                    (wanted - 1) * config.page_size,
                )
        engine = build_engine(runtime, target, kv, drafting, list(text.end_ids), config)
        _log.info(
            "engine built: %s (%s) on %s, %d slots, %d pages of %d tokens in %s",
            source.path,
            type(target).__name__,
            runtime.device,
            config.max_batch,
            config.num_pages,
            config.page_size,
            str(kv_dtype).removeprefix("torch."),
        )
        compiler = (
            GuideCompiler(vocabulary, backend=config.grammar, untrusted=config.untrusted_guides)
            if vocabulary is not None
            else None
        )
        return cls(source.path, runtime, speculation, config, text, compiler, engine, target.config)


def sized_by_memory(
    runtime: Runtime,
    caches: Sequence[PagedKV],
    config: ResolvedConfig,
    given: int | None,
    num_drafts: int,
    windows: Sequence[Window],
    state_bytes: int = 0,
) -> ResolvedConfig:
    """Resize all caches to the pages that the config's memory limits allow, besides `state_bytes` of states. Returns
    the config with the resulting `num_pages`. All weights must be loaded. `given` is the caller's `num_pages`, and
    `windows` are those of the layers with pages, as for `windowed_pages`. Raises `InputError` if too few pages fit."""
    by_share = given is None or config.kv_memory_fraction is not None
    free = runtime.free_memory() if by_share else 0
    memory = DeviceMemory(free, is_shared=runtime.device.type == "cpu")
    page_bytes, windowed_bytes = sum(cache.page_bytes for cache in caches), caches[0].windowed_bytes
    num_pages = pages_in_memory(config, given, page_bytes, memory, num_drafts, state_bytes)
    num_windowed = windowed_pages(replace(config, num_pages=num_pages), windows, num_drafts)
    if num_windowed:  # fewer than `num_pages`, so that more of the others fit
        page_bytes -= windowed_bytes
        taken = num_windowed * windowed_bytes
        num_pages = pages_in_memory(config, given, page_bytes, memory, num_drafts, state_bytes, taken)
    for cache in caches:
        cache.resize(num_pages, num_windowed if cache is caches[0] else 0)
    return replace(config, num_pages=num_pages)
