"""The cases of the fuzzers: every backend of the registry with every guide of `guides.py`, and every kind of guide
that no library compiles. New backends of the registry are included automatically. A new kind of guide needs an
example here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from support.grammar.grammars import small_vocabulary
from support.grammar.guide_kinds import KINDS
from support.grammar.guides import GUIDES
from weft import registry
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft_bench.vocabulary import synthetic_vocabulary

# Guides that are or contain Python objects or plug-ins. These need not refuse tokens that weft never passes to them.
LENIENT = ("Python", "recogniser", "plug-in")


@functools.cache
def vocabularies() -> tuple[Vocabulary, ...]:
    """A vocabulary of 300 tokens, nearly all single bytes, and one of 4000 tokens, nearly all words."""
    return small_vocabulary(), synthetic_vocabulary(4000)


@dataclass(frozen=True)
class Case:
    """A guide for one vocabulary under one backend."""

    backend: str
    name: str
    vocabulary: Vocabulary
    is_native: bool
    compile: Callable[[], CompiledGuide]


def backends() -> list[str]:
    """The arguments of `cases`: the registry's grammar libraries, XGrammar through Python, and "guides" for those
    that no library compiles."""
    return [*registry.names("grammars"), "xgrammar, Python", "guides"]


def cases(backend: str) -> Iterator[Case]:
    """Yield every guide under one of `backends`. `compile` raises `GuideError` for a guide that the backend can't
    express."""
    for vocabulary in vocabularies():
        if backend == "guides":
            compiler = GuideCompiler(vocabulary)
            made = list(KINDS.items())
        else:
            compiler = _compiler(backend, vocabulary)
            made = [(f"{kind} {i}", functools.partial(_guide, i)) for i, (kind, _) in enumerate(GUIDES)]
        for name, make in made:
            is_native = "Python" not in backend and not any(word in name for word in LENIENT)
            yield Case(
                backend, name, vocabulary, is_native, functools.partial(_compile, compiler.compile_part, make)
            )


def compiled(case: Case) -> CompiledGuide | None:
    """Compile a case's guide. None if its backend can't express it."""
    try:
        return case.compile()
    except GuideError:
        return None


class _ThroughPython:
    """A backend that calls XGrammar's matchers through Python."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._backend = XGrammarBackend(vocabulary, native=False)

    def compile_part(self, guide: Guide) -> CompiledGuide:
        return self._backend.compile(guide)


@functools.cache
def _compiler(backend: str, vocabulary: Vocabulary) -> GuideCompiler | _ThroughPython:
    return _ThroughPython(vocabulary) if "Python" in backend else GuideCompiler(vocabulary, backend=backend)


def _compile(compile_part: Callable[[Guide], CompiledGuide], make: Callable[[], Guide]) -> CompiledGuide:
    return compile_part(make())


def _guide(number: int) -> Guide:
    kind, argument = GUIDES[number]
    make = getattr(Guide, kind)
    guide: Guide = make() if argument is None else make(argument)
    return guide
