"""Structured output: guides, the vocabularies they are compiled for, and the matchers that fill token masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import exports

if TYPE_CHECKING:
    from weft.grammar.base import Backend, CompiledGuide, Matcher, Opening, wrap_matcher
    from weft.grammar.compile.compiler import GuideCompiler
    from weft.grammar.guide import Guide as Guide  # public in `weft`
    from weft.grammar.interfaces import PythonMatcher, Recognizer
    from weft.grammar.kinds.tools import tool_styles
    from weft.grammar.limits import CompileLimits
    from weft.grammar.vocabulary.materials import VocabularyMaterials
    from weft.grammar.vocabulary.tokenizer import Vocabulary
    from weft.tokenizer.formats import tool_style_of

__all__ = [
    "Backend",
    "CompileLimits",
    "CompiledGuide",
    "GuideCompiler",
    "Matcher",
    "Opening",
    "PythonMatcher",
    "Recognizer",
    "Vocabulary",
    "VocabularyMaterials",
    "tool_style_of",
    "tool_styles",
    "wrap_matcher",
]

if not TYPE_CHECKING:
    _HOMES = {
        "weft.grammar.base": ("Backend", "CompiledGuide", "Matcher", "Opening", "wrap_matcher"),
        "weft.grammar.compile.compiler": ("GuideCompiler",),
        "weft.grammar.guide": ("Guide",),
        "weft.grammar.interfaces": ("PythonMatcher", "Recognizer"),
        "weft.tokenizer.formats": ("tool_style_of",),
        "weft.grammar.kinds.tools": ("tool_styles",),
        "weft.grammar.limits": ("CompileLimits",),
        "weft.grammar.vocabulary.materials": ("VocabularyMaterials",),
        "weft.grammar.vocabulary.tokenizer": ("Vocabulary",),
    }
    _get, __dir__ = exports(__name__, _HOMES, __all__)

    def __getattr__(name: str) -> object:
        if name not in __all__ and name[0].isupper():  # not a module
            from weft.core.names import refuse_other_library

            refuse_other_library(__name__, name)
        return _get(name)
