"""How a benchmark's figures are printed."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from weft.config.environment import commit
from weft_bench.report import Report

ROWS: list[dict[str, Any]] = [
    {
        "load": f"{clients} clients",
        "guided_percent": percent,
        **{f"first_token_p{i}_ms": 500.0 + i for i in range(9)},
        "requests": 12345,
    }
    for clients in (1, 128)
    for percent in (0, 100)
]


def printed(width: int) -> str:
    out = io.StringIO()
    Report("serve", ROWS, {"device": "cpu"}).show(Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_the_console(width: int) -> None:
    """Every figure is whole; each table has what tells its rows apart."""
    text = printed(width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and "…" not in text
    for i in range(9):
        assert text.count(f" {500 + i} ") == len(ROWS)
    tables = sum(line.startswith("┏") for line in lines)
    assert tables > 1 or width == 120
    assert sum(line.startswith("│ 128 clients") for line in lines) == 2 * tables
    assert text.count("12345") == len(ROWS) and text.count("weft bench serve") == 1
    assert "device: cpu" in text


def test_a_wide_console_shows_one_table_with_whole_names() -> None:
    text = printed(400)
    assert text.count("┏") == 1 and "guided_percent" in text and "first_token_p8_ms" in text


def test_a_wheel_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"
