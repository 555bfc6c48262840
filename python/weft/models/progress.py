"""Shows how far the loading of weights is: a bar on the terminal, or lines in the log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_log = logging.getLogger(__name__)

QUIET_S = 0.5
"""Loading that takes less time shows no bar and logs nothing, so that small models do not make the bar flash."""
LOG_INTERVAL_S = 10.0
BAR_INTERVAL_S = 0.05


class LoadProgress:
    """The progress of reading `num_bytes` of weights from `path`. A context manager.

    If the log records the level INFO, as that of `weft serve` does, it gets a line every `LOG_INTERVAL_S`, and one at
    the end unless that comes before `QUIET_S`. If weft's log has no handler, and stderr is a terminal, a bar there
    shows bytes and rate."""

    def __init__(self, path: Path, num_bytes: int) -> None:
        self.path = path
        self.num_bytes = num_bytes
        self.num_read = 0
        handlers = logging.getLogger("weft").handlers
        is_log_set_up = any(not isinstance(handler, logging.NullHandler) for handler in handlers)
        self._logs = _log.isEnabledFor(logging.INFO)
        self._has_bar = not (self._logs or is_log_set_up) and sys.stderr is not None and sys.stderr.isatty()
        self._begin = self._shown = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> LoadProgress:
        self._begin = self._shown = time.monotonic()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._logs and kind is None:
            seconds = time.monotonic() - self._begin
            if seconds >= QUIET_S:
                _log.info("loaded %s: %s in %.1f s, %s/s", self.path, *self._figures(seconds))

    def advance(self, num_bytes: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self.num_read += num_bytes
            now = time.monotonic()
            seconds, pause = now - self._begin, now - self._shown
            if self._logs and pause >= LOG_INTERVAL_S:
                self._shown = now
                read, _, rate = self._figures(seconds)
                _log.info("loading %s: %s of %s, %s/s", self.path, read, size_of(self.num_bytes), rate)
            elif self._has_bar and seconds >= QUIET_S and pause >= BAR_INTERVAL_S:
                self._shown = now
                self._show()

    def _figures(self, seconds: float) -> tuple[str, float, str]:
        return size_of(self.num_read), seconds, size_of(self.num_read / max(seconds, 1e-9))

    def _show(self) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            console = Console(stderr=True)
            self._bar = Progress(
                TextColumn("loading {task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task(self.path.name, total=self.num_bytes)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=self.num_read)


def size_of(num_bytes: float) -> str:
    """A number of bytes for people: "16.1 GB" or "269 MB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} bytes"
