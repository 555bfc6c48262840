"""The page of the helpers names each of them, by folder."""

from __future__ import annotations

import re
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"


def test_every_helper_has_its_line() -> None:
    sections = re.split(r"^## ", (SUPPORT / "README.md").read_text(), flags=re.MULTILINE)
    named = {
        Path("" if number == 0 else section.split("\n")[0]) / name
        for number, section in enumerate(sections)
        for name in re.findall(r"^\| `(\w+\.py)`", section, flags=re.MULTILINE)
    }
    there = {path.relative_to(SUPPORT) for path in SUPPORT.rglob("*.py") if not path.name.startswith("__")}
    assert named == there
