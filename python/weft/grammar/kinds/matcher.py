"""Guides over matchers written in Python: nothing is compiled."""

from __future__ import annotations

from weft.grammar.base import NO_REQUEST, CompiledGuide, CompileParts, Matcher, Opening, wrap_matcher
from weft.grammar.guide import Guide


class CompiledFactory:
    """Makes matchers by the guide's own function."""

    memory_bytes = 0
    backend = None
    notes = ()

    def __init__(self, guide: Guide, vocab_size: int) -> None:
        self.guide = guide
        self.vocab_size = vocab_size

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """What the factory makes, wrapped."""
        return wrap_matcher(self.guide.payload(), self.guide.payload)


def compile_factory(guide: Guide, parts: CompileParts) -> CompiledGuide:
    """For `Guide.matcher`."""
    return CompiledFactory(guide, parts.vocabulary.vocab_size)
