"""Finds the fenced code blocks of a page, with the marks that say how a test runs them.

A mark is an HTML comment right before a block, so that it does not show on the page. `MARKS` lists all of them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKS = {
    "needs": "what a run of the block needs; `a server` there is, what else is named is not run",
    "serves": "the block starts a server, which is ended when it answers",
    "file": "the block is this file",
    "prints": "the block is what the one before it prints",
    "from": "the block is run where these folders of the repository are, too",
}
RUN = ("python", "sh")
SHOWN = ("c", "cpp", "diff", "dockerfile", "ini", "json", "nginx", "promql", "text", "toml", "yaml")
"""Languages of blocks that are not run."""

FENCE = re.compile(r"^( *)```(\S*)$")
MARK = re.compile(r"^ *<!-- (\w+)(?:: (.+?))? -->$")


@dataclass(frozen=True)
class Fence:
    """A block of `page` with its marks. Its code begins on line `line` (from 1)."""

    page: Path
    line: int
    language: str
    code: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def mark(self, name: str) -> str | None:
        """Return the text of a mark ("" for a mark without a text), or None if the block does not have it."""
        return dict(self.marks).get(name)

    @property
    def lacks(self) -> str | None:
        """The requirement of the block that tests can't meet, or None."""
        needs = self.mark("needs")
        return None if needs == "a server" else needs


def fences_of(page: Path) -> list[Fence]:
    """Return all blocks of a page in order."""
    return list(_fences(page, page.read_text().splitlines()))


def _fences(page: Path, lines: list[str]) -> Iterator[Fence]:
    marks: list[tuple[str, str]] = []
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if opened is not None:
            if fence is not None:
                code = textwrap.dedent("\n".join(lines[opened[0] : number]) + "\n")
                yield Fence(page, opened[0] + 1, opened[1], code, tuple(marks))
                opened, marks = None, []
        elif fence is not None:
            opened = (number + 1, fence[2])
        elif (mark := MARK.match(line)) is not None:
            marks.append((mark[1], mark[2] or ""))
        elif line.strip():
            marks = []
