"""What a grammar library is to compile of a guide: worked out by the trial, and built by the process that asked.

A schema of 256 KB may keep Python at work for seconds: costs, chains, rewriting, spelling. For a stranger's guide the
trial (`precheck.py`) does that, where no request waits for the interpreter. What comes of it is text that a library
reads natively, so that the process that serves others only builds it. (How its answers end is still worked out there,
from that text: `Closes`.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.errors import GuideError
from weft.grammar.base import Backend, Chooser, CompiledGuide, Prepared, Preparing
from weft.grammar.compile.parts import Parts
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary


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
