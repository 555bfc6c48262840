"""Guides as a recording keeps them: their text, or their program."""

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
"""Guides that are text where they have no object of the program but a `WasmSource`, and so are kept whole."""


@dataclass(frozen=True)
class RecordedGuide:
    """A guide as a recording has it, and the name of the grammar library that compiled it (None: XGrammar). `program`
    is what it has of WASM. For a guide that is another object of the program, `source` is None.
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
        """What can be kept of a guide that `backend` compiled."""
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
        """The guide again; None where it was not kept."""
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
        """As JSON can hold it."""
        program = None if self.program is None else self.program.to_json()
        return {**vars(self), "program": program}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RecordedGuide:
        """What `to_json` gave. Raises as `WasmSource.from_json` does for anything else."""
        program, separators = data.get("program"), data.get("separators")
        made = {
            "program": None if program is None else WasmSource.from_json(program),
            "separators": None if separators is None else tuple(separators),
        }
        return cls(**{**data, **made})
