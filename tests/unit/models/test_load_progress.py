"""The progress of loading: a bar on a terminal, lines in a log, nothing elsewhere."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest

from weft.models import progress
from weft.models.progress import LoadProgress, size_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def load(clock: list[float], steps: int, seconds: float) -> None:
    with LoadProgress(Path("models/some-model"), steps * 500_000_000) as shown:
        for _ in range(steps):
            clock[0] += seconds
            shown.advance(500_000_000)


def test_a_terminal_gets_a_bar_with_bytes_and_rate(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    load(clock, 4, 1.0)
    assert "loading some-model" in terminal.getvalue() and "/2.0 GB" in terminal.getvalue()
    assert "B/s" in terminal.getvalue()


def test_a_fast_load_and_a_pipe_get_nothing(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, seconds in ((Terminal(), 0.1), (io.StringIO(), 9.0)):
        monkeypatch.setattr("sys.stderr", stream)
        load(clock, 4, seconds)
        assert stream.getvalue() == ""


def test_a_log_gets_lines_instead(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with caplog.at_level(logging.INFO, logger="weft"):
        load(clock, 4, 6.0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "loading models/some-model: 1 GB of 2 GB, 83.3 MB/s",
        "loading models/some-model: 2 GB of 2 GB, 83.3 MB/s",
        "loaded models/some-model: 2 GB in 24.0 s, 83.3 MB/s",
    ]
    assert terminal.getvalue() == ""


def test_a_log_of_warnings_gets_nothing(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `weft serve --log-level warning`."""
    terminal, logger, handler = Terminal(), logging.getLogger("weft"), logging.StreamHandler(io.StringIO())
    monkeypatch.setattr("sys.stderr", terminal)
    logger.addHandler(handler)
    try:
        load(clock, 4, 6.0)
    finally:
        logger.removeHandler(handler)
    assert terminal.getvalue() == handler.stream.getvalue() == ""


def test_sizes_are_for_people() -> None:
    assert [size_of(size) for size in (0, 999, 46_080, 269_060_552, 16.06e9, 1.4e12)] == [
        "0 bytes", "999 bytes", "46.1 kB", "269 MB", "16.1 GB", "1.4 TB",
    ]  # fmt: skip
