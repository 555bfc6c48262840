"""Compiling a guide of any kind on the calling thread: a grammar library's, or one of weft's kinds around such a guide.

The trial process (`precheck.py`) does the same, so that what was tried is what is compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft import registry
from weft.core.awake import AwakeWatch
from weft.errors import GuideError, WeftError
from weft.grammar.base import Backend, Chooser, CompiledGuide, Prepared, Preparing
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


@dataclass(frozen=True)
class Part:
    """What a trial settled for: the library that compiles a guide, and what that is to build (None: it can't tell)."""

    library: str
    prepared: Prepared | None


def digest(guide: Guide) -> str:
    """A digest of all that tells a guide from others."""
    return hashlib.sha256(repr(guide.key).encode(errors="surrogatepass")).hexdigest()


def packed(parts: Mapping[str, Part]) -> tuple[list[Any], bytes]:
    """Parts by their guides' digests, as plain data and the bytes that follow it."""
    rows, texts = [], []
    for key, part in parts.items():
        prepared = part.prepared
        text = b"" if prepared is None else prepared.text.encode(errors="surrogatepass")
        told = None if prepared is None else [prepared.kind, len(text), prepared.notes]
        rows.append([key, part.library, told])
        texts.append(text)
    return rows, b"".join(texts)


def unpacked(rows: Sequence[Any], texts: bytes) -> dict[str, Part]:
    """What `packed` was given. Raises `ValueError` where texts are missing."""
    parts, at = {}, 0
    for key, library, told in rows:
        prepared = None
        if told is not None:
            kind, size, notes = told
            text = texts[at : at + size].decode(errors="surrogatepass")
            prepared, at = Prepared(kind, text, tuple(notes)), at + size
        parts[key] = Part(library, prepared)
    if at != len(texts):
        raise ValueError(f"{len(texts)} bytes of texts, where {at} were told")
    return parts


class Handed(Parts):
    """Compiles what a trial found out of a guide, by the guides that it is made of."""

    def __init__(
        self, vocabulary: Vocabulary, backend: Backend, limits: CompileLimits, parts: Mapping[str, Part]
    ) -> None:
        super().__init__(vocabulary, backend, limits)
        self._parts = parts

    def text(self, guide: Guide) -> str | None:
        """What a library is to read for a guide that it compiles alone; None where that is not known."""
        part = self._parts.get(digest(guide))
        return part.prepared.text if part is not None and part.prepared is not None else None

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """As the trial did, without what it looked at already."""
        part = self._parts.get(digest(guide))
        if part is None:
            raise GuideError("the guide compiles to something else than in its trial")
        backend = self._backend
        if isinstance(backend, Chooser):
            backend = backend.libraries[part.library]
        if part.prepared is None or not isinstance(backend, Preparing):
            return backend.compile(guide)
        return backend.build(guide, part.prepared)
