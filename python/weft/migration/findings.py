"""The result of a check: `Finding`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """The kinds of findings."""

    IMPORT = "import"
    """The import must change."""
    ELSEWHERE = "elsewhere"
    """The name belongs to another part of TensorRT-LLM."""
    REFUSED = "refused"
    """weft has the name, but accepts only its default."""
    LACKING = "lacking"
    """TensorRT-LLM has the name, weft does not."""
    OTHERWISE = "otherwise"
    """Both have the name, with different meanings."""
    OLDER = "older name"
    """The newest API has another name for it."""
    UNKNOWN = "unknown"
    """Neither has the name."""


@dataclass(frozen=True, order=True)
class Finding:
    """A finding: `name` at `line` and `column` (both from 1) of `file`. `text` is the reason and the remedy."""

    file: str
    line: int
    column: int
    kind: FindingKind
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self) | {"kind": str(self.kind)}
