"""Rows of an earlier run, so that the whole can be measured in parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.config.environment import environment

from .ratios import Row, pick

SAME = ("machine", "commit")


def kept_rows(file: Path) -> list[Row]:
    """The rows of a report; none where there is no such file. Raises `ValueError` where they are of another machine or
    commit, whose rows would not be comparable."""
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
    """The rows but those of a group, which is measured again."""
    replaced = pick(rows, **group)
    return [row for row in rows if row not in replaced]
