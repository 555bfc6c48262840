"""Compiled guides as bytes, where their grammar library can write them: a service may keep them for its next start.

A dump holds what a library compiled, and is read back without being tried: it is as trusted as the program itself. Keep
it where strangers can't write.
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib.metadata import version
from typing import Any, Protocol, runtime_checkable

from weft.errors import GuideError
from weft.grammar.base import Backend, CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.vocabulary.tokenizer import Vocabulary

FORMAT = "weft-compiled-guide-1"


@runtime_checkable
class Dumpable(Protocol):
    """A compiled guide whose library can write it."""

    library: str
    """The distribution that reads what it wrote, in the same version."""

    def dumped(self) -> str:
        """What it compiled to, as the library writes it."""


@runtime_checkable
class Restoring(Protocol):
    """A backend whose library can read what it wrote."""

    def restore(self, guide: Guide, text: str, notes: tuple[str, ...]) -> CompiledGuide:
        """What `Dumpable.dumped` wrote of a guide. Raises `GuideError`."""


def dump(compiled: CompiledGuide, vocabulary: Vocabulary) -> bytes:
    """A compiled guide as bytes, for the same vocabulary and version of its library. Raises `GuideError` where the
    library can't write it (LLGuidance, and what weft compiles itself), or the guide holds an object of the program.
    """
    guide = compiled.guide
    if not isinstance(compiled, Dumpable) or guide.payload is not None:
        who = f"the guide {guide.kind}" if compiled.backend is None else f"what {compiled.backend} compiled"
        raise GuideError(f"{who} can't be dumped; keep the guide's text and compile it again")
    data = {
        "format": FORMAT,
        "library": compiled.library,
        "version": version(compiled.library),
        "vocabulary": vocabulary.fingerprint,
        "notes": compiled.notes,
        "guide": {
            field.name: getattr(guide, field.name) for field in fields(guide) if field.name != "payload"
        },
        "compiled": compiled.dumped(),
    }
    return json.dumps(data, separators=(",", ":")).encode()


def load(data: bytes, vocabulary: Vocabulary, backend: Backend) -> CompiledGuide:
    """What `dump` wrote. Raises `GuideError` for anything else, another vocabulary or version of the library."""
    try:
        held: dict[str, Any] = json.loads(data)
        if held["format"] != FORMAT:
            raise KeyError("format")
        separators = held["guide"].pop("separators", None)
        guide = Guide(**held["guide"], separators=None if separators is None else tuple(separators))
        made_with, notes, text = (held["library"], held["version"]), tuple(held["notes"]), held["compiled"]
        fingerprint = held["vocabulary"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GuideError(f"the bytes are no compiled guide that weft dumped ({error!r})") from None
    if fingerprint != vocabulary.fingerprint:
        raise GuideError("the compiled guide is for another vocabulary; compile the guide again")
    if not isinstance(backend, Restoring):
        raise GuideError(f"the compiled guide is {made_with[0]}'s, which this compiler does not use")
    if version(made_with[0]) != made_with[1]:
        raise GuideError(
            f"the compiled guide was made with {made_with[0]} {made_with[1]}, and {version(made_with[0])} is "
            "installed; compile the guide again"
        )
    return backend.restore(guide, text, notes)
