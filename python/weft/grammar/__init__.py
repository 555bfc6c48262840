"""Guides, the vocabularies they are compiled for, and the matchers that come out."""

from weft.grammar.base import (
    Backend,
    CompiledGuide,
    Matcher,
    Opening,
    wrap_matcher,
)
from weft.grammar.compile.compiler import GuideCompiler
from weft.grammar.guide import Guide as Guide  # public in `weft`
from weft.grammar.interfaces import PythonMatcher, Recognizer
from weft.grammar.kinds.tools import tool_styles
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

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
    "tool_styles",
    "wrap_matcher",
]


def __dir__() -> list[str]:
    return list(__all__)
