"""Recognisers: objects that say byte by byte what a text may be. weft walks the tokens of the vocabulary with them."""

from __future__ import annotations

import atexit
import functools

from weft import _core
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts


class CompiledRecognizer:
    """Makes matchers over recognisers of the guide's own function."""

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
        """A new matcher over a new recogniser."""
        return self._native.matcher()


def compile_recognizer(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """For `Guide.recognizer`."""
    return CompiledRecognizer(guide, parts.vocabulary)


def token_trie(vocabulary: Vocabulary) -> _core.TokenTrie:
    """The tokens of a vocabulary as a tree; built once for each of the last few."""
    return _token_trie(vocabulary.fingerprint, vocabulary)


@functools.lru_cache(maxsize=4)
def _token_trie(fingerprint: str, vocabulary: Vocabulary) -> _core.TokenTrie:
    return _core.TokenTrie(token_texts(vocabulary), vocabulary.vocab_size)


atexit.register(_token_trie.cache_clear)  # native objects go before their types do
