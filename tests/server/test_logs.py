"""How the server's log is written: beside the event loop, and bounded."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from weft.server.logs import JsonFormatter, LineWriter


def record(message: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("weft", level, __file__, 1, message, (), None)


def wait_until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.005)


class Stuck(io.StringIO):
    """A pipe that is full until `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.free = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.free.wait(60)
        return super().write(text)


def test_lines_come_in_their_order() -> None:
    stream = io.StringIO()
    writer = LineWriter(stream)
    for number in range(50):
        writer.emit(record(str(number)))
    wait_until(lambda: stream.getvalue().count("\n") == 50)
    assert stream.getvalue().split() == [str(number) for number in range(50)]


def test_a_log_that_nobody_reads_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.server.logs.MAX_LINES", 10)
    stream = Stuck()
    writer = LineWriter(stream)
    writer.emit(record("first", logging.WARNING))
    assert stream.entered.wait(60)
    for number in range(25):  # comes to its end while the stream takes nothing
        writer.emit(record(str(number)))
    stream.free.set()
    wait_until(lambda: "dropped" in stream.getvalue())
    lines = stream.getvalue().splitlines()
    assert lines[:11] == ["first", *map(str, range(10))]
    assert lines[11] == "15 lines were dropped: the log is read too slowly"


def test_the_note_of_dropped_lines_is_json_in_a_log_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.server.logs.MAX_LINES", 0)
    stream = io.StringIO()
    writer = LineWriter(stream)
    writer.setFormatter(JsonFormatter())
    writer.emit(record("lost"))
    writer.flush()
    line = json.loads(stream.getvalue())
    assert line["level"] == "warning" and line["message"].startswith("1 lines were dropped")


def test_the_last_lines_are_written_when_the_process_ends() -> None:
    program = """
import logging
from weft.server import logs
logs.set_up("text", "info")
logging.getLogger("weft.server").info("the last line")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("INFO weft.server: the last line\n")
