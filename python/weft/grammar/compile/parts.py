"""`Parts`: compiles a guide of any kind on the calling thread, with the guides nested in it.

The trial process uses a subclass of `Parts`, so the trial and the real compile take the same steps. For an untrusted
guide the trial also does all the work in Python: limits, rewriting, translation. A schema of 256 KB may hold the GIL
for seconds, and in the trial process no request waits for the GIL. The trial returns text that a library parses
natively. `TriedParts` builds a guide from it in the serving process. Shortest endings (`Closes`) are computed there
from the same text, with work in Python.
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
    """Compiles a guide and its nested guides: the `CompileParts` that the compile functions of "guides" get."""

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
        """Compile a guide on this thread. A failure that is not a `WeftError` becomes a `GuideError`."""
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
        """Compile a guide with the grammar library."""
        self.check_leaf(guide)
        return self._backend.compile(guide)

    def check_leaf(self, guide: Guide) -> None:
        """Run the checks that a guide must pass before a library reads it. Raises `GuideError`."""
        check_text(guide, self._limits)
        guide.of_model(None)  # raises for tools of the style "auto", which need a model's chat template
        if not guide.is_read:
            guide.check()
        check_chain(guide, self._limits)


def _is_memory(error: BaseException) -> bool:
    # A library raises SystemError if no memory is left to build its own exception.
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
    """The outcome of a trial for one guide: the chosen library, and its input (None if the library is not
    `Preparing`)."""

    library: str
    prepared: Prepared | None


def digest(guide: Guide) -> str:
    """Return the SHA-256 of `Guide.key`."""
    return hashlib.sha256(repr(guide.key).encode(errors="surrogatepass")).hexdigest()


def packed(parts: Mapping[str, Part]) -> tuple[list[Any], bytes]:
    """Serialize parts, keyed by their guides' digests. Returns a header for JSON and the concatenated texts."""
    rows, texts = [], []
    for key, part in parts.items():
        prepared = part.prepared
        text = b"" if prepared is None else prepared.text.encode(errors="surrogatepass")
        header = None if prepared is None else [prepared.kind, len(text), prepared.notes]
        rows.append([key, part.library, header])
        texts.append(text)
    return rows, b"".join(texts)


def unpacked(rows: Sequence[Any], texts: bytes) -> dict[str, Part]:
    """Undo `packed`. Raises `ValueError` if the texts do not have the length that the header gives."""
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
    """Compiles a guide from the results of its trial, without the checks and translation that the trial did."""

    def __init__(
        self, vocabulary: Vocabulary, backend: Backend, limits: CompileLimits, parts: Mapping[str, Part]
    ) -> None:
        super().__init__(vocabulary, backend, limits)
        self._parts = parts

    def text(self, guide: Guide) -> str | None:
        """Return the library's input text for a guide without nested guides; None if the trial prepared none."""
        part = self._parts.get(digest(guide))
        return part.prepared.text if part is not None and part.prepared is not None else None

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """Compile with the library that the trial chose, from the text that it prepared."""
        part = self._parts.get(digest(guide))
        if part is None:
            raise GuideError("the guide has other parts than in its trial")
        backend = self._backend
        if isinstance(backend, Chooser):
            backend = backend.libraries[part.library]
        if part.prepared is None or not isinstance(backend, Preparing):
            return backend.compile(guide)
        return backend.build(guide, part.prepared)
