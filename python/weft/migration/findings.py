"""The result of a check: `Finding`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """The kind of a finding."""

    IMPORT = "import"
    """An import of the Executor API, to be replaced by weft's."""
    ELSEWHERE = "elsewhere"
    """The name belongs to another part of TensorRT-LLM, or to vLLM."""
    REFUSED = "refused"
    """weft has the name, but accepts only its default."""
    LACKING = "lacking"
    """TensorRT-LLM has the name, weft does not."""
    OTHERWISE = "otherwise"
    """Both have the name, with different meanings."""
    OLDER = "older name"
    """The name is from an older version of TensorRT-LLM; the newest has another name for the same thing."""
    UNKNOWN = "unknown"
    """Neither side has the name."""


@dataclass(frozen=True, order=True)
class Finding:
    """A finding about `name`, at `line` and `column` (both from 1) of `file`. `text` says the reason and the remedy."""

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
