"""Writes the tables of docs/models.md from the results of tests: `python tools/docs/models.py`.

`python tools/docs/models.py --run` runs the tests first, an hour or so on two cores, and keeps their results in
`tests/e2e/models/results.json`. Further arguments go to pytest, such as `-m "not full"` for fewer settings, or `-k
FAMILY`. Families that do not run keep their results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
TESTS = ROOT / "tests" / "e2e" / "models"
RESULTS = TESTS / "results.json"
HEADING = "## Checked families"

WIDTH = 130

PLAIN = {"none", "beams"}
NAMES = {
    "draft_model": "a draft model",
    "eagle3": "an EAGLE3 head",
    "forced": "forced tokens",
    "given": "expected answers",
    "ngram": "n-grams",
}
"""Names of drafters, if they are not those of settings."""

Results = dict[str, Any]


def rewritten(page: str, results: Results) -> str:
    """The page with the tables of `results` after its heading."""
    head, heading, _ = page.partition(f"\n{HEADING}\n")
    assert heading, f"{PAGE} has no heading {HEADING!r}"
    return head + heading + "\n" + "\n".join(tables(results)) + "\n"


def tables(results: Results) -> Iterator[str]:
    families, others = results["families"], results["others"]
    settings = {setting for family in families.values() for setting in family["settings"]}
    counts = [len(family["settings"]) for family in families.values()]
    yield textwrap.fill(
        f"With transformers {results['transformers']}. Each of these {len(families)} families ran with {min(counts)} "
        f"to {max(counts)} of {len(settings)} settings: without drafts, with two beams, and with {drafters(settings)}.",
        WIDTH,
    )
    yield ""
    yield from table(families)
    yield ""
    yield f"These {len(others)} families ran with one setting, without drafts:"
    yield ""
    yield from table(others)
    yield ""
    yield "### Refused families"
    yield ""
    yield "A model of these families is refused when it is loaded. No family that was tried loads and is wrong."
    yield ""
    yield "| Reason | Families |"
    yield "|---|---|"
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in results["refused"].items():
        reasons[reason].append(name)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"| {escaped(reason)} | {coded(names)} |"
    yield ""
    yield textwrap.fill(
        f"Not tried, since no small network of them was made: {coded(results['not built'])}.", WIDTH
    )


def table(families: dict[str, Any]) -> Iterator[str]:
    """The table of families that run."""
    yield "| Family | Class | Code | Memory | Parts | Settings | Difference |"
    yield "|---|---|---|---|---|---|---|"
    for name, family in families.items():
        cells = (
            f"`{name}`",
            f"`{family['architecture']}`",
            "weft" if family["is_own"] else "transformers",
            family["memory"],
            ", ".join(family["parts"]),
            str(len(family["settings"])),
            f"{family['difference']:.0e}",
        )
        yield f"| {' | '.join(cells)} |"


def drafters(settings: set[str]) -> str:
    """The drafters of settings."""
    names = [NAMES.get(name, name) for name in sorted({setting.split()[0] for setting in settings} - PLAIN)]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def coded(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Rewrite the page. Returns pytest's exit code if the tests run and fail."""
    if arguments[:1] == ["--run"]:
        command = [sys.executable, "-m", "pytest", "-q", str(TESTS), "--models-report", str(RESULTS)]
        code = subprocess.run([*command, *arguments[1:]], cwd=ROOT).returncode
        if code:
            return code
    PAGE.write_text(rewritten(PAGE.read_text(), json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
