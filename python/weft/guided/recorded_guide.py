"""Guides in a recording: their text or their program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.aici.source import WasmSource
from weft.grammar.guide import Guide, Kind

KEPT_KINDS: tuple[Kind, ...] = (
    "json_schema",
    "regex",
    "ebnf",
    "lark",
    "choice",
    "structural_tag",
    "after",
    "wasm",
)
"""Kinds of guides that consist of text, or of a `WasmSource`, and so can be recorded."""


@dataclass(frozen=True)
class RecordedGuide:
    """A recorded guide, and the name of the grammar library that compiled it (None: XGrammar). `program` is its WASM
    program, if any. `source` is None for a guide that is an object of the user's program, which can't be recorded.
    """

    kind: str
    source: str | None
    max_whitespace: int | None = None
    any_order: bool = False
    backend: str | None = None
    program: WasmSource | None = None
    separators: tuple[str, str] | None = None
    strict: bool = False
    open_objects: bool = False

    @classmethod
    def of(cls, guide: Guide, backend: str | None = None) -> RecordedGuide:
        """Record a guide that `backend` compiled, as far as possible."""
        program = guide.payload if isinstance(guide.payload, WasmSource) else None
        if guide.kind not in KEPT_KINDS or guide.payload is not program:
            return cls(guide.kind, None)
        return cls(
            guide.kind,
            guide.source,
            guide.max_whitespace,
            guide.any_order,
            backend,
            program,
            guide.separators,
            guide.strict,
            guide.open_objects,
        )

    def guide(self) -> Guide | None:
        """The guide, or None if it could not be recorded."""
        kind = next((kind for kind in KEPT_KINDS if kind == self.kind), None)
        if kind is None or self.source is None:
            return None
        return Guide(
            kind,
            self.source,
            self.max_whitespace,
            self.program,
            strict=self.strict,
            any_order=self.any_order,
            separators=self.separators,
            open_objects=self.open_objects,
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data for JSON."""
        program = None if self.program is None else self.program.to_json()
        return {**vars(self), "program": program}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RecordedGuide:
        """The inverse of `to_json`. Raises as `WasmSource.from_json` does for other data."""
        program, separators = data.get("program"), data.get("separators")
        made = {
            "program": None if program is None else WasmSource.from_json(program),
            "separators": None if separators is None else tuple(separators),
        }
        return cls(**{**data, **made})
