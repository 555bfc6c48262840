"""What is found in a program: `Finding`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a finding says of a name."""

    IMPORT = "import"
    """The import is to be another."""
    ELSEWHERE = "elsewhere"
    """It belongs to another part of TensorRT-LLM."""
    REFUSED = "refused"
    """weft has the name, and takes its default alone."""
    LACKING = "lacking"
    """TensorRT-LLM has it, weft does not."""
    OTHERWISE = "otherwise"
    """Both have it, with another meaning."""
    OLDER = "older name"
    """The newest API has another name for it."""
    UNKNOWN = "unknown"
    """Neither has it."""


@dataclass(frozen=True, order=True)
class Finding:
    """One thing to look at: `name` at `line` and `column` (both from 1) of `file`, and in `text` why and what to do."""

    file: str
    line: int
    column: int
    kind: Kind
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.kind}: {self.text}"

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self) | {"kind": str(self.kind)}
