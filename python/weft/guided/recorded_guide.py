"""Guides as a recording stores them: their text, and for some kinds a payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from weft import registry
from weft.grammar.guide import Guide, GuideKind, MaxWhitespace

RECORDED_KINDS: tuple[GuideKind, ...] = (
    "json_schema",
    "regex",
    "ebnf",
    "lark",
    "choice",
    "structural_tag",
    "after",
    "wasm",
)
"""The kinds of guides that are stored in full, unless their payload can't be stored."""


@runtime_checkable
class Storable(Protocol):
    """A payload that can be stored. `registry.PAYLOADS` has the function that reads it."""

    def to_recording(self) -> dict[str, Any]:
        """The payload as JSON data."""


@dataclass(frozen=True)
class RecordedGuide:
    """A guide in a recording. `backend` is the grammar library that compiled it (None: XGrammar). `source` is None if
    the guide can't be stored.
    """

    kind: str
    source: str | None
    max_whitespace: MaxWhitespace = None
    any_order: bool = False
    backend: str | None = None
    payload: Storable | None = None
    separators: tuple[str, str] | None = None
    strict: bool = False
    open_objects: bool = False

    @classmethod
    def of(cls, guide: Guide, backend: str | None = None) -> RecordedGuide:
        """Record a guide that `backend` compiled. If it can't be stored, record only its kind."""
        payload = guide.payload if isinstance(guide.payload, Storable) else None
        if guide.kind not in RECORDED_KINDS or guide.payload is not payload:
            return cls(guide.kind, None)
        return cls(
            guide.kind,
            guide.source,
            guide.max_whitespace,
            guide.any_order,
            backend,
            payload,
            guide.separators,
            guide.strict,
            guide.open_objects,
        )

    def guide(self) -> Guide | None:
        """Rebuild the guide; None if it was not stored."""
        kind = next((kind for kind in RECORDED_KINDS if kind == self.kind), None)
        if kind is None or self.source is None:
            return None
        return Guide(
            kind,
            self.source,
            self.max_whitespace,
            self.payload,
            strict=self.strict,
            any_order=self.any_order,
            separators=self.separators,
            open_objects=self.open_objects,
        )

    def to_json(self) -> dict[str, Any]:
        """The guide as JSON data. The payload's key is "program", for compatibility with older recordings."""
        data = {**vars(self), "program": None if self.payload is None else self.payload.to_recording()}
        del data["payload"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RecordedGuide:
        """The inverse of `to_json`. Raises `KeyError`, `TypeError`, `ValueError` or `zlib.error` for other data."""
        read = dict(data)
        payload, separators = read.pop("program", None), read.pop("separators", None)
        return cls(
            **read,
            payload=None if payload is None else registry.load("payloads", "program")(payload),
            separators=None if separators is None else tuple(separators),
        )
