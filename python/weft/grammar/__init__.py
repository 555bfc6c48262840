"""Guides, the vocabularies they are compiled for, and the matchers that come out."""

from weft.grammar.base import (
    Backend,
    CompiledGuide,
    Matcher,
    Opening,
    PythonMatcher,
    Recognizer,
    wrap_matcher,
)
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

__all__ = [
    "Backend",
    "CompileLimits",
    "CompiledGuide",
    "Guide",
    "GuideCompiler",
    "Matcher",
    "Opening",
    "PythonMatcher",
    "Recognizer",
    "Vocabulary",
    "wrap_matcher",
]
