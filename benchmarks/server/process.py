"""A server in a separate process, with its memory and its CPU time by thread."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A running process of `weft serve`. The constructor waits until it listens."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "weft.cli", "serve", "--port", "0", "--log-level", "info", *options]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = []
        for line in self._process.stderr:
            said.append(line)
            if (found := re.search(r"http://127.0.0.1:(\d+)", line)) is not None:
                self.port = int(found[1])
                break
        else:
            raise RuntimeError("".join(said))
        threading.Thread(target=self._drop, daemon=True).start()

    @property
    def memory_mib(self) -> float:
        """Resident memory in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    @property
    def loop_s(self) -> float:
        """CPU seconds of the event loop's thread, which is the main thread."""
        return self._seconds(self._process.pid)

    @property
    def total_s(self) -> float:
        """CPU seconds of all threads."""
        tasks = Path(f"/proc/{self._process.pid}/task")
        return sum(self._seconds(int(task.name)) for task in tasks.iterdir())

    def end(self) -> None:
        """Shut the server down."""
        self._process.terminate()
        self._process.wait(60)

    def _seconds(self, thread: int) -> float:
        fields = Path(f"/proc/{self._process.pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def _drop(self) -> None:
        assert self._process.stderr is not None
        for _ in self._process.stderr:
            pass


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """Run a server, and shut it down at the end."""
    server = Server(*options)
    try:
        yield server
    finally:
        server.end()
