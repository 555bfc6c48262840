"""Finds the fenced code blocks of a page, with the marks that say how a test runs them.

A mark is an HTML comment right before a block. `MARKS` lists all of them. A reader of the page does not see marks, so
the paragraph before a block says what the block needs, too (`Fence.unsaid`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

MARKS = {
    "continues": "the block runs after the blocks above; a block without this mark runs alone",
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
    """A block of `page` with its marks. Its code begins on line `line` (from 1). `lead` is the paragraph before it."""

    page: Path
    line: int
    language: str
    code: str
    marks: tuple[tuple[str, str], ...] = ()
    lead: str = ""

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

    @property
    def unsaid(self) -> list[str]:
        """The words about the block's needs that its lead should have and has not."""
        words = []
        if self.mark("continues") is not None:
            words.append("above")
        if self.mark("from") is not None:
            words.append("checkout")
        words.append(self.mark("file") or "")
        words.append(re.sub(r"^(a|an|the) ", "", self.mark("needs") or ""))
        lead = self.lead.replace("`", "").lower()
        return [word for word in words if word.lower() not in lead]


def fences_of(page: Path) -> list[Fence]:
    """Return all blocks of a page in order."""
    return list(_fences(page, page.read_text().splitlines()))


def runs_of(page: Path) -> Iterator[list[Fence]]:
    """Yield the runs that try the blocks of a page: all blocks up to the last that continues others, and each block
    alone that does not. Blocks that tests can't run are left out. A `prints` block goes with the one before it."""
    todo = [fence for fence in fences_of(page) if fence.lacks is None]
    last = max((i for i, fence in enumerate(todo) if fence.mark("continues") is not None), default=-1)
    if last >= 0:
        yield todo[: last + 1] + list(takewhile(is_output, todo[last + 1 :]))
    for i, fence in enumerate(todo):
        is_tried_first = i == 0 <= last
        if not is_output(fence) and fence.mark("continues") is None and not is_tried_first:
            yield [fence, *takewhile(is_output, todo[i + 1 :])]


def is_output(fence: Fence) -> bool:
    """Whether the block is the output of the one before it."""
    return fence.mark("prints") is not None


def _fences(page: Path, lines: list[str]) -> Iterator[Fence]:
    marks: list[tuple[str, str]] = []
    lead: list[str] = []
    is_lead_complete = False
    opened: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        fence = FENCE.match(line)
        if opened is not None:
            if fence is not None:
                code = textwrap.dedent("\n".join(lines[opened[0] : number]) + "\n")
                yield Fence(page, opened[0] + 1, opened[1], code, tuple(marks), " ".join(lead))
                opened, marks, lead = None, [], []
        elif fence is not None:
            opened = (number + 1, fence[2])
        elif (mark := MARK.match(line)) is not None:
            marks.append((mark[1], mark[2] or ""))
        elif not line.strip():
            is_lead_complete = True
        else:
            lead = [line.strip()] if is_lead_complete else [*lead, line.strip()]
            marks, is_lead_complete = [], False
