"""The fenced blocks of a page, and what its comments say of each.

A comment of HTML right before a block is a mark; readers do not see it. `MARKS` are all there are.
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
SHOWN = ("c", "diff", "dockerfile", "ini", "json", "nginx", "text", "toml")
"""Languages of blocks that are not run."""

FENCE = re.compile(r"^( *)```(\S*)$")
MARK = re.compile(r"^ *<!-- (\w+)(?:: (.+?))? -->$")


@dataclass(frozen=True)
class Fence:
    """A block of `page`, whose code begins on the line `line` (from 1), and its marks."""

    page: Path
    line: int
    language: str
    code: str
    marks: tuple[tuple[str, str], ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def mark(self, name: str) -> str | None:
        """What a mark says (an empty text where it says nothing); None without it."""
        return dict(self.marks).get(name)

    @property
    def lacks(self) -> str | None:
        """What the block needs that tests have not."""
        needs = self.mark("needs")
        return None if needs == "a server" else needs


def fences_of(page: Path) -> list[Fence]:
    """All blocks of a page, in its order."""
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
