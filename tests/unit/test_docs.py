"""The pages: each is in the index, and every link between files of the repository leads somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.docs.fences import MARKS, RUN, SHOWN, fences_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]

BASES = [ROOT, DOCS, ROOT / "python" / "weft", ROOT / "csrc" / "include", ROOT / "tests"]

OF_THE_READER = {"adding-a-drafter.md": {"spec/repeat.py"}, "adding-a-grammar.md": {"grammar/words.py"}}
"""By page, the files that its reader is to create."""

NOT_RUN = {
    "README.md": ["a checkout"],
    "docs/adding-a-drafter.md": ["the line in registry.py", "a checkout with these additions"],
    "docs/adding-a-grammar.md": ["the line in registry.py", "a checkout with these additions"],
    "docs/adding-a-model.md": ["the line in registry.py", "a checkout with these additions"],
    "docs/adding-a-sampling-parameter.md": [
        "python/weft/core/sampling.py",
        "tests/support/engine/sampling_oracle.py",
        "tests/e2e/engine/test_sampling_params.py",
        "the checkout",
    ],
    "docs/command-line.md": ["the Hugging Face hub", "SmolLM2", "SmolLM2"],
    "docs/getting-started.md": ["a checkout", "a wheel", "PyPI", "the Hugging Face hub"],
    "docs/grammars.md": ["some minutes", "a folder of schemas"],
    "docs/releasing.md": ["a checkout"],
    "docs/server.md": ["a checkout", "the package anthropic"],
    "docs/serving.md": ["minutes on a quiet machine"],
    "docs/wasm.md": ["the package ziglang"],
}
"""By page, what those blocks of Python and shell need that `tests/docs` does not run. What adding-a-*.md says is done
by `tests/contracts/test_added_parts.py`."""

FILE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.(?:py|h|cpp|cu|c|md|txt|wat))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """Where the links of a page lead, those to other sites left out. Code has none."""
    found = LINK.findall(FENCE.sub("", text))
    return [target for target in found if not target.startswith(("https://", "http://", "mailto:"))]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def missing(text: str) -> list[str]:
    """Files that a page names in its text, with their folders, and that are not there."""
    named = FILE.findall(FENCE.sub("", text))
    return [name for name in named if not any((base / name).exists() for base in BASES)]


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert broken(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page: Path) -> None:
    assert set(missing(page.read_text())) == OF_THE_READER.get(page.name, set())


def test_the_index_has_every_page() -> None:
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(INDEX.read_text())}
    assert [page.name for page in sorted(DOCS.glob("*.md")) if page != INDEX and page not in listed] == []


def test_the_readme_and_the_index_lead_to_each_other() -> None:
    assert "docs/README.md" in links((ROOT / "README.md").read_text())
    assert "../README.md" in links(INDEX.read_text())


def test_every_block_says_its_language_and_its_marks_are_known() -> None:
    fences = [fence for page in PAGES for fence in fences_of(page)]
    assert [fence.place for fence in fences if fence.language not in (*RUN, *SHOWN)] == []
    assert [(fence.place, mark) for fence in fences for mark, _ in fence.marks if mark not in MARKS] == []


def test_what_is_not_run_is_known() -> None:
    found = {
        str(page.relative_to(ROOT)): [
            fence.lacks for fence in fences_of(page) if fence.language in RUN and fence.lacks
        ]
        for page in PAGES
    }
    assert {name: needs for name, needs in found.items() if needs} == NOT_RUN


def test_the_readme_says_what_was_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    measured = {
        (row["weft_over"], row["dtype"], row["batch"]): (row["without_drafts"], row["best_over_best"])
        for name in ("peers", "peers-q4_1", "peers-openvino")
        for row in json.loads((results / f"{name}.json").read_text())["summary"]["against_peers"]
        if row["checkpoint"] == "SmolLM2-135M-Instruct" and row["guided"]
    }
    rows = re.findall(r"^\| (\S.*) \| (\d+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == 6
    for peers, batch, text in rows:
        names, cells = peers.split("; "), [cell.strip() for cell in text.split("|")]
        for peer, dtype, shown in (names[0], "Q4_1", cells[:2]), (names[-1], "bfloat16", cells[2:]):
            expected = [f"{ratio:.1f}" for ratio in measured[peer, dtype, int(batch)]]
            # An empty cell says that no drafter was measured, so the best is without drafts.
            assert [cell or shown[0] for cell in shown] == expected, (peer, batch)


def test_marks_are_those_right_before_a_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- needs: luck -->\ntext\n```python\na\n```\n\n<!-- file: a.c -->\n<!-- from: b -->\n  ```c\n  c\n  ```\n"
    )
    first, second = fences_of(page)
    assert (first.code, first.line, first.marks) == ("a\n", 4, ())
    assert (second.code, second.line, second.marks) == ("c\n", 10, (("file", "a.c"), ("from", "b")))


def test_broken_links_are_found() -> None:
    text = (
        "[a](nowhere.md) [b](README.md#no-such-heading) [c](README.md#read-first)\n```\n[d](code.md)\n```\n"
    )
    assert broken(INDEX, text) == ["nowhere.md", "README.md#no-such-heading"]


def test_the_files_that_one_token_leads_through_are_there() -> None:
    named = set(re.findall(r"\*\*`([^`]+)`\*\*", (DOCS / "one-token.md").read_text()))
    assert named
    assert [name for name in named if not any((base / name).exists() for base in BASES)] == []


def test_missing_files_are_found() -> None:
    assert missing("`engine/engine.py`, `engine/loop.py`, `csrc/driver/driver.h`") == ["engine/loop.py"]
