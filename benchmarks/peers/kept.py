"""Keeps rows of an earlier run, so that the comparison can be measured in several runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.config.environment import environment

from .ratios import Row, pick

SAME = ("machine", "commit")


def kept_rows(file: Path) -> list[Row]:
    """Return the rows of a report, or none if the file is missing. Raises `ValueError` for another machine or
    commit, because its rows are not comparable."""
    if not file.exists():
        return []
    report: dict[str, Any] = json.loads(file.read_text())
    here = environment()
    for key in SAME:
        if report[key] != here[key]:
            raise ValueError(
                f"{file} is of the {key} {report[key]}, this is {here[key]}; add to another folder"
            )
    rows: list[Row] = report["rows"]
    return rows


def without(rows: Sequence[Row], group: Row) -> list[Row]:
    """Return the rows without those of `group`, which is measured again."""
    replaced = pick(rows, **group)
    return [row for row in rows if row not in replaced]
