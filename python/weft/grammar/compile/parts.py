"""Compiling a guide of any kind on the calling thread: a grammar library's, or one of weft's kinds around such a guide.

The trial process (`precheck.py`) does the same, so that what was tried is what is compiled.
"""

from __future__ import annotations

from typing import Any

from weft import registry
from weft.core.awake import AwakeWatch
from weft.errors import GuideError, WeftError
from weft.grammar.base import Backend, CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits, check_chain, check_text
from weft.grammar.vocabulary.tokenizer import Vocabulary


class Parts:
    """What kinds of guides are compiled with (`weft.grammar.base.CompileParts`)."""

    def __init__(
        self, vocabulary: Vocabulary, backend: Backend, limits: CompileLimits, watch: AwakeWatch | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self._watch = watch if watch is not None else AwakeWatch()
        self._backend = backend
        self._limits = limits

    @property
    def time_left_s(self) -> float:
        """Of the limit."""
        return self._limits.time_s - self._watch.seconds

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile on this thread. Raises `GuideError`, for whatever fails."""
        try:
            if guide.kind in registry.GUIDES:
                compiled: CompiledGuide = registry.load("guides", guide.kind)(guide, self)
                return compiled
            return self.compile_leaf(guide)
        except WeftError:
            raise
        except Exception as error:
            words = "it takes too much memory" if _is_memory(error) else f"{type(error).__name__}: {error}"
            raise GuideError(f"the guide does not compile: {words[:500]}") from error

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """A guide for a grammar library."""
        self.check_leaf(guide)
        return self._backend.compile(guide)

    def check_leaf(self, guide: Guide) -> None:
        """Check for what would break every library. Raises `GuideError`."""
        check_text(guide, self._limits)
        guide.of_model(None)  # raises for what only a model makes whole
        if not guide.is_read:
            guide.check()
        check_chain(guide, self._limits)


def _is_memory(error: BaseException) -> bool:
    # A SystemError is an exception of a library's that had no memory left for itself.
    return isinstance(error, MemoryError | SystemError) or "bad_alloc" in str(error)


def make_backend(
    name: str, vocabulary: Vocabulary, limits: CompileLimits, untrusted: bool, threads: int | None = None
) -> Backend:
    """The registry's backend `name`."""
    made: Any = registry.load("grammars", name)
    backend: Backend = made(vocabulary, limits=limits, untrusted=untrusted, threads=threads)
    return backend
