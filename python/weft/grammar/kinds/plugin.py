"""Plug-ins: shared libraries, built outside of weft, that make matchers or recognisers (`weft/plugin.h`)."""

from __future__ import annotations

from pathlib import Path

from weft import _core
from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening
from weft.grammar.guide import Guide
from weft.grammar.kinds.recognizer import token_trie
from weft.grammar.vocabulary.tokenizer import Vocabulary, token_texts


def include_dir() -> Path:
    """The directory of `weft/plugin.h`, `weft/matcher.h` and `weft/recognizer.h`, for `cc -I`."""
    return Path(_core.__file__).parent / "include"


class CompiledPlugin:
    """What a plug-in prepared for a guide."""

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
        self.matcher()  # what it makes for no request, it makes for others

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """What the plug-in makes for a request."""
        try:
            return self._native.matcher(self._texts, self._trie, self.vocab_size, self._end_ids)
        except GuideError as error:
            raise GuideError(f"plug-in {self._path}: {error}") from None


def compile_plugin(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """For `Guide.plugin`."""
    return CompiledPlugin(guide, parts.vocabulary)
