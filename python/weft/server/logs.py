"""Sets up the server's log, as plain text or as one JSON object per line."""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]
WRITE_EVERY_S, MAX_LINES = 0.1, 10_000


class JsonFormatter(logging.Formatter):
    """Formats a log record as a JSON object. Access log records carry their own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        members = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "weft", None)
        members |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            members["exception"] = self.formatException(record.exc_info)
        return json.dumps(members, ensure_ascii=False)


class LineWriter(logging.Handler):
    """Writes log lines on its own thread, ten times a second. A warning is written immediately.

    The thread exists because a stalled log reader must not block the event loop, and because a system call per request
    would cost the loop a tenth of its time. While `MAX_LINES` lines are queued, further lines are dropped. The log then
    reports how many.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._num_dropped = 0
        self._urgent, self._writing = threading.Event(), threading.Lock()
        threading.Thread(target=self._run, name="weft-log", daemon=True).start()
        atexit.register(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Format a record and queue its line for the thread."""
        if len(self._lines) >= MAX_LINES:
            self._num_dropped += 1
            return
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)
        if record.levelno >= logging.WARNING:
            self._urgent.set()

    def flush(self) -> None:
        """Write all queued lines."""
        with self._writing:
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped, self._num_dropped = self._num_dropped, 0
            if dropped:
                lines.append(self.format(_note_of(dropped)))
            if lines:
                with suppress(OSError):  # the reader of the pipe has exited
                    self._stream.write("\n".join(lines) + "\n")
                    self._stream.flush()

    def _run(self) -> None:
        while True:
            self._urgent.wait(WRITE_EVERY_S)
            self._urgent.clear()
            self.flush()


def _note_of(num_dropped: int) -> logging.LogRecord:
    message = f"{num_dropped} lines were dropped: the log is read too slowly"
    return logging.LogRecord("weft.server", logging.WARNING, __file__, 0, message, None, None)


def set_up(form: LogFormat, level: str) -> LineWriter:
    """Send the log records of weft and uvicorn to standard error. Call `flush` on the returned handler before other
    code writes there."""
    handler = LineWriter(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("weft", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        logger.propagate = False
    if level == "info":
        # Their lines about the start and the end repeat those of weft.server.
        for name in ("uvicorn", "weft.client", "weft.engine"):
            logging.getLogger(name).setLevel(logging.WARNING)
    return handler
