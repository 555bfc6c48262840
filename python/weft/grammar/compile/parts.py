"""Compiling a guide of any kind on the calling thread: one for a grammar library, or one of weft's kinds around such
a guide.

`Parts` does it. The trial process compiles through a subclass of `Parts`, so that the guide that passed the trial is
the guide that is compiled. For an untrusted guide the trial also does all of the work in Python: costs, chains,
rewriting, spelling. A schema of 256 KB may keep Python busy for seconds, and in the trial no other request waits for
that interpreter. The result is text that a library reads natively; `TriedParts` builds it in the process that serves.
Only the shortest endings of answers (`Closes`) are still computed there, from that text.
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
    """The `CompileParts` that kinds of guides are compiled with."""

    def __init__(
        self, vocabulary: Vocabulary, backend: Backend, limits: CompileLimits, watch: AwakeWatch | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self._watch = watch if watch is not None else AwakeWatch()
        self._backend = backend
        self._limits = limits

    @property
    def time_left_s(self) -> float:
        """Seconds left of `limits.time_s`."""
        return self._limits.time_s - self._watch.seconds

    def compile_part(self, guide: Guide) -> CompiledGuide:
        """Compile a guide on this thread. Every failure becomes a `GuideError`."""
        try:
            if guide.kind in registry.GUIDES:
                compiled: CompiledGuide = registry.load("guides", guide.kind)(guide, self)
                return compiled
            return self.compile_leaf(guide)
        except WeftError:
            raise
        except Exception as error:
            reason = "it takes too much memory" if _is_memory(error) else f"{type(error).__name__}: {error}"
            raise GuideError(f"the guide does not compile: {reason[:500]}") from error

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """Compile a guide for a grammar library."""
        self.check_leaf(guide)
        return self._backend.compile(guide)

    def check_leaf(self, guide: Guide) -> None:
        """Raise `GuideError` for a guide that no library may get to read."""
        check_text(guide, self._limits)
        guide.of_model(None)  # raises for tools of the style "auto", which need a model's chat template
        if not guide.is_read:
            guide.check()
        check_chain(guide, self._limits)


def _is_memory(error: BaseException) -> bool:
    # A library that has no memory left to build its own exception raises SystemError.
    return isinstance(error, MemoryError | SystemError) or "bad_alloc" in str(error)


def make_backend(
    name: str, vocabulary: Vocabulary, limits: CompileLimits, untrusted: bool, threads: int | None = None
) -> Backend:
    """Make the backend that the registry lists under `name`."""
    backend_class: Any = registry.load("grammars", name)
    backend: Backend = backend_class(vocabulary, limits=limits, untrusted=untrusted, threads=threads)
    return backend


@dataclass(frozen=True)
class Part:
    """The outcome of a trial for one guide: the library that compiles it, and the text to build (None: the backend
    does not prepare any)."""

    library: str
    prepared: Prepared | None


def digest(guide: Guide) -> str:
    """Return a digest of everything that distinguishes a guide from others."""
    return hashlib.sha256(repr(guide.key).encode(errors="surrogatepass")).hexdigest()


def packed(parts: Mapping[str, Part]) -> tuple[list[Any], bytes]:
    """Serialize parts, keyed by their guides' digests: a header of plain data, and the bytes of the texts that follow
    it."""
    rows, texts = [], []
    for key, part in parts.items():
        prepared = part.prepared
        text = b"" if prepared is None else prepared.text.encode(errors="surrogatepass")
        header = None if prepared is None else [prepared.kind, len(text), prepared.notes]
        rows.append([key, part.library, header])
        texts.append(text)
    return rows, b"".join(texts)


def unpacked(rows: Sequence[Any], texts: bytes) -> dict[str, Part]:
    """Undo `packed`. Raises `ValueError` where texts are missing."""
    parts, offset = {}, 0
    for key, library, header in rows:
        prepared = None
        if header is not None:
            kind, size, notes = header
            text = texts[offset : offset + size].decode(errors="surrogatepass")
            prepared, offset = Prepared(kind, text, tuple(notes)), offset + size
        parts[key] = Part(library, prepared)
    if offset != len(texts):
        raise ValueError(f"{len(texts)} bytes of texts, but the header announces {offset}")
    return parts


class TriedParts(Parts):
    """Compiles a guide from the results of its trial, without repeating the trial's work."""

    def __init__(
        self, vocabulary: Vocabulary, backend: Backend, limits: CompileLimits, parts: Mapping[str, Part]
    ) -> None:
        super().__init__(vocabulary, backend, limits)
        self._parts = parts

    def text(self, guide: Guide) -> str | None:
        """Return the text that the library reads for a guide without parts, or None where it is not known."""
        part = self._parts.get(digest(guide))
        return part.prepared.text if part is not None and part.prepared is not None else None

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """Compile with the library, and from the text, that the trial chose."""
        part = self._parts.get(digest(guide))
        if part is None:
            raise GuideError("the guide has other parts than in its trial")
        backend = self._backend
        if isinstance(backend, Chooser):
            backend = backend.libraries[part.library]
        if part.prepared is None or not isinstance(backend, Preparing):
            return backend.compile(guide)
        return backend.build(guide, part.prepared)
