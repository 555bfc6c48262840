"""Every block of Python and of shell in the README and the pages runs as it stands there, in the page's order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.docs.fences import RUN, fences_of
from support.docs.reader import ROOT, Reader

pytestmark = pytest.mark.slow

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if fences_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, server: Callable[[], str]) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    todo = [fence for fence in fences_of(page) if fence.lacks is None]
    if not any(fence.language in RUN for fence in todo):
        return
    with Reader(folder, server) as reader:
        for fence in todo:
            reader.do(fence)
