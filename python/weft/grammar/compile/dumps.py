"""Serializes compiled guides, if their grammar library can, so that a service can keep them for its next start.

A dump holds the library's own serialization, and is loaded without a trial. So keep dumps where untrusted clients
can't write.
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, runtime_checkable

from weft.errors import GuideError
from weft.grammar.base import Backend, CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary

FORMAT = "weft-compiled-guide-1"


@runtime_checkable
class Dumpable(Protocol):
    """A compiled guide that its library can serialize."""

    library: str
    """The Python distribution of the library. Only the same version can load the dump."""

    def dumped(self) -> str:
        """Return the compiled guide in the library's own serialization."""


@runtime_checkable
class Restoring(Protocol):
    """A backend whose library can read its own serialization."""

    def restore(self, guide: Guide, text: str, notes: tuple[str, ...]) -> CompiledGuide:
        """Rebuild a compiled guide from the text of `Dumpable.dumped`. Raises `GuideError`."""


def dump(compiled: CompiledGuide, vocabulary: Vocabulary) -> bytes:
    """Serialize a compiled guide, for the same vocabulary and the same version of its library.

    Raises `GuideError` if the guide has a `payload`, or if it can't be serialized. LLGuidance can't serialize guides,
    and weft can't serialize those that it compiles itself.
    """
    guide = compiled.guide
    if not isinstance(compiled, Dumpable) or guide.payload is not None:
        subject = (
            f"the guide {guide.kind}" if compiled.backend is None else f"what {compiled.backend} compiled"
        )
        raise GuideError(f"{subject} can't be dumped; keep the guide's text and compile it again")
    data = {
        "format": FORMAT,
        "library": compiled.library,
        "version": version(compiled.library),
        "vocabulary": vocabulary.fingerprint,
        "notes": compiled.notes,
        "guide": {
            field.name: getattr(guide, field.name)
            for field in fields(guide)
            if field.name not in ("payload", "python_type")
        },
        "compiled": compiled.dumped(),
    }
    return json.dumps(data, separators=(",", ":")).encode()


def load(data: bytes, vocabulary: Vocabulary, backend: Backend) -> CompiledGuide:
    """Rebuild a compiled guide from the bytes of `dump`. Raises `GuideError` for other bytes, another vocabulary, a
    backend without `restore`, or another version of the library."""
    try:
        stored: dict[str, Any] = json.loads(data)
        if stored["format"] != FORMAT:
            raise KeyError("format")
        separators = stored["guide"].pop("separators", None)
        guide = Guide(**stored["guide"], separators=None if separators is None else tuple(separators))
        library, made_with = stored["library"], stored["version"]
        if not isinstance(library, str):
            raise TypeError("library")
        notes, text = tuple(stored["notes"]), stored["compiled"]
        fingerprint = stored["vocabulary"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuideError(f"the bytes are not a compiled guide that weft dumped ({error!r})") from None
    if fingerprint != vocabulary.fingerprint:
        raise GuideError("the compiled guide is for another vocabulary; compile the guide again")
    if not isinstance(backend, Restoring):
        raise GuideError(f"the compiled guide is {library}'s, which this compiler does not use")
    installed = _installed_version(library)
    if installed is None or installed != made_with:
        raise GuideError(
            f"the compiled guide was made with {library} {made_with}, and {installed or 'no version'} is "
            "installed; compile the guide again"
        )
    return backend.restore(guide, text, notes)


def _installed_version(library: str) -> str | None:
    try:
        return version(library)
    except (PackageNotFoundError, ValueError):  # ValueError: the name is empty
        return None
