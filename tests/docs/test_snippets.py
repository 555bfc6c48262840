"""Every block of Python and of shell in the README and the pages runs as it stands there: alone, or after the blocks
above if the page says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.docs.fences import RUN, Fence, fences_of, runs_of
from support.docs.reader import ROOT, Reader

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if fences_of(page)]
RUNS = [run for page in PAGES for run in runs_of(page) if any(fence.language in RUN for fence in run)]


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0].place}-{run[-1].line}")
def test_blocks_do_what_the_page_says(run: list[Fence], tmp_path: Path, server: Callable[[], str]) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with Reader(folder, server) as reader:
        for fence in run:
            reader.do(fence)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_sees_what_a_block_needs(page: Path) -> None:
    """The marks do not show on the page, so the paragraph before the block has the words."""
    assert [(fence.place, fence.unsaid) for fence in fences_of(page) if fence.unsaid] == []


def test_a_block_that_continues_others_runs_after_them_and_the_rest_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    blocks = ["a = 1", "b = 2", "a + b", "c = 3"]
    marks = ["", "", "<!-- continues -->\n", "<!-- needs: a moon -->\n"]
    leads = ["First:", "Second:", "Third,\nwith these:", "With a moon:"]
    parts = zip(leads, marks, blocks, strict=True)
    page.write_text("\n\n".join(f"{lead}\n\n{mark}```python\n{code}\n```" for lead, mark, code in parts))
    assert [[fence.code.strip() for fence in run] for run in runs_of(page)] == [
        ["a = 1", "b = 2", "a + b"],
        ["b = 2"],
    ]
    assert [fence.lead for fence in fences_of(page)] == [
        "First:",
        "Second:",
        "Third, with these:",
        "With a moon:",
    ]
    assert [fence.unsaid for fence in fences_of(page)] == [[], [], ["above"], []]
