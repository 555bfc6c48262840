"""Guides with user code: matchers and recognizers in Python, and plug-ins in C (`weft/plugin.h`).

To fill a mask with a recognizer, weft walks the trie of the vocabulary's tokens with it, byte by byte.
"""

from __future__ import annotations

import atexit
import functools
from pathlib import Path

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening, wrap_matcher
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts


class CompiledFactory:
    """A compiled guide of `Guide.matcher`. The user's factory makes the matchers."""

    memory_bytes = 0
    backend = None
    notes = ()

    def __init__(self, guide: Guide, vocab_size: int) -> None:
        self.guide = guide
        self.vocab_size = vocab_size

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher from the factory, wrapped as a native one."""
        return wrap_matcher(self.guide.payload(), self.guide.payload)


def compile_factory(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """Compile a guide of `Guide.matcher`."""
    return CompiledFactory(guide, parts.vocabulary.vocab_size)


class CompiledRecognizer:
    """A compiled guide of `Guide.recognizer`. The user's factory makes the recognizers."""

    memory_bytes = 0
    backend = None
    notes = ()

    def __init__(self, guide: Guide, vocabulary: Vocabulary) -> None:
        self.guide = guide
        self.vocab_size = vocabulary.vocab_size
        self._native = _core.RecognizerGuide(
            token_texts(vocabulary),
            token_trie(vocabulary),
            vocabulary.vocab_size,
            list(vocabulary.end_ids),
            guide.payload,
        )

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher over a new recognizer."""
        return self._native.matcher()


def compile_recognizer(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """Compile a guide of `Guide.recognizer`."""
    return CompiledRecognizer(guide, parts.vocabulary)


@functools.lru_cache(maxsize=4)
def token_trie(vocabulary: Vocabulary) -> _core.TokenTrie:
    """The trie of a vocabulary's tokens, cached for the last few (4) vocabularies."""
    return _core.TokenTrie(token_texts(vocabulary), vocabulary.vocab_size)


atexit.register(token_trie.cache_clear)  # native objects must go before the interpreter drops their types


def include_dir() -> Path:
    """The directory of `weft/plugin.h`, `weft/matcher.h` and `weft/recognizer.h`, for `cc -I`."""
    return Path(_core.__file__).parent / "include"


class CompiledPlugin:
    """A compiled guide of `Guide.plugin`: the state that the plug-in prepared for it. The constructor raises
    `GuideError` if the plug-in can't be loaded or can't make a matcher."""

    memory_bytes = 0
    backend = None
    notes = ()

    def __init__(self, guide: Guide, vocabulary: Vocabulary) -> None:
        self.guide = guide
        self.vocab_size = vocabulary.vocab_size
        path, arg = guide.payload
        self._path = path
        self._texts, self._end_ids = token_texts(vocabulary), list(vocabulary.end_ids)
        try:
            self._native = _core.PluginGuide(path, self._texts, self._end_ids, self.vocab_size, arg)
        except GuideError as error:
            raise GuideError(f"plug-in {path}: {error}") from None
        self._trie = token_trie(vocabulary) if self._native.recognizes else None
        self.matcher()  # a plug-in that can't make matchers fails here, not in a request

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A new matcher of the plug-in. Raises `GuideError`."""
        try:
            return self._native.matcher(self._texts, self._trie, self.vocab_size, self._end_ids)
        except GuideError as error:
            raise GuideError(f"plug-in {self._path}: {error}") from None


def compile_plugin(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """Compile a guide of `Guide.plugin`."""
    return CompiledPlugin(guide, parts.vocabulary)
