"""A figure in the pages names the version of weft that gave it, where its report in `benchmarks/results` is of an older
version than this one. Tables of figures have a column for it, which is held against the reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.docs.reader import ROOT
from weft.version import __version__

RESULTS = ROOT / "benchmarks" / "results"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
FIGURE = re.compile(r"\d ?(?:µs|ms|MiB|MB|%|times)|\b\d+\.\d+\b(?!\.)")
NO_FIGURE = re.compile(r"Llama 3\.1|[Ww]eft \d+\.\d+\.\d+|benchmarks/results/[\w./-]+")
OTHER_REPORTS = {"prompts.py --guided": "prompts-eagle3", "weft bench grammar schemas": "grammar-schemas"}
"""Reports that are not called as their command is."""


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, or a row of a table: `version` is what the row says in its column `weft`, and
    `source` what stands elsewhere in the page and says where its figures come from."""

    page: str
    line: int
    text: str
    version: str | None = None
    source: str = ""

    @property
    def reports(self) -> set[str]:
        """The reports that the block's figures are of, by the command or the file that it names."""
        text = f"{self.text} {self.source}"
        other = {report for command, report in OTHER_REPORTS.items() if command in text}
        for command in OTHER_REPORTS:
            text = re.sub(rf"(?:python benchmarks/)?{re.escape(command)}", "", text)
        commands = re.findall(
            r"(?:`weft bench (?=\w+(?:`| --))|`python benchmarks/|-m benchmarks\.)(\w+)", text
        )
        return other | set(commands) | set(re.findall(r"benchmarks/results/([\w/-]+)\.json", text))


def blocks_of(page: Path) -> Iterator[Block]:
    """The page's blocks outside of fences. A row of a table without a command goes with the command above; where the
    table has none at all, with the paragraph above."""
    name, part, begun, header, command, above, is_code = page.name, list[str](), 0, list[str](), "", "", False
    for number, line in enumerate([*page.read_text().splitlines(), ""], 1):
        is_row, is_item = line.startswith("|"), re.match(r"\s*(?:- |\d+\. |#)", line)
        if part and (not line.strip() or is_row or is_item or line.startswith("```")):
            above = " ".join(part)
            yield Block(name, begun, above)
            part = []
        if line.startswith("```"):
            is_code = not is_code
        elif is_row and not is_code:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            header = header or cells
            row = dict(zip(header, cells, strict=False))
            command = row.get("command") or command
            version = row.get("weft", "") if "weft" in header else None
            yield Block(name, number, line, version, command if "command" in header else above)
        elif line.strip() and not is_code:
            begun = begun if part else number
            part.append(line.strip())
        if not is_row:
            header, command = [], ""


def version_of(report: str) -> str | None:
    """The version of weft that made a report; None where there is no such report."""
    path = RESULTS / f"{report}.json"
    return str(json.loads(path.read_text())["versions"]["weft"]) if path.is_file() else None


def stale(block: Block, current: str = __version__) -> list[str]:
    """What the block fails to say: the versions of its reports that it does not name and that are not the current one;
    in a row of a table with a column for them, also that one."""
    if not FIGURE.search(NO_FIGURE.sub("", block.text)):
        return []
    versions = sorted({version for report in block.reports if (version := version_of(report)) is not None})
    if block.version is not None and versions:
        return [version for version in versions if version not in block.version.split()]
    return [one for one in versions if one != current and f"weft {one}" not in f"{block.text} {block.source}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_name_the_version_that_gave_them(page: Path) -> None:
    missing = [(f"{block.page}:{block.line}", stale(block)) for block in blocks_of(page) if stale(block)]
    assert missing == []


def test_every_command_of_a_table_has_a_report() -> None:
    rows = [block for page in PAGES for block in blocks_of(page) if block.version is not None]
    lost = [block for block in rows if block.reports and not any(map(version_of, block.reports))]
    assert rows and lost == []


def test_stale_figures_are_found(tmp_path: Path) -> None:
    """In prose, in an item, in a row with its command above, in a column that names another version."""
    page = tmp_path / "page.md"
    page.write_text(
        "A node takes 5 µs\n(`weft bench replay`).\n\n- 12 % by `benchmarks/results/replay.json`\n\n"
        "| what | measured | command |\n|---|---|---|\n| a | 1.5 | `weft bench replay` |\n| b | 2.5 | |\n\n"
        "| what | measured | command | weft |\n|---|---|---|---|\n| a | 1.5 | `weft bench replay` | 9.9.9 |\n\n"
        "```sh\nweft bench replay   # 5 ms\n```\n\nWith `weft bench replay` you measure nodes.\n"
    )
    made = version_of("replay")
    assert made is not None
    found = [block.line for block in blocks_of(page) if stale(block, "99.0.0")]
    assert found == [1, 4, 8, 9, 13]
    page.write_text(page.read_text().replace("9.9.9", made).replace(" µs", f" µs (weft {made})"))
    assert [block.line for block in blocks_of(page) if stale(block, "99.0.0")] == [4, 8, 9]
