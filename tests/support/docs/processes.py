"""Starts the processes that the blocks of a page need: a Python interpreter, shells and servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent


def environment(folder: Path) -> dict[str, str]:
    """The environment variables for a process in `folder`. The commands of this Python's environment come first on
    PATH."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CURL_HOME": str(HERE),  # its .curlrc makes curl fail on HTTP errors
        "ZIG_GLOBAL_CACHE_DIR": str(folder.parent.with_name("zig")),  # one cache for all pages
    }


def start(command: list[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a process in `folder`. Its output goes to a pipe."""
    started: subprocess.Popen[str] = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, **options
    )
    return started


def start_shell(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a shell that exits at the first command that fails."""
    return start(["bash", "-euo", "pipefail", "-c", code], folder, stderr=subprocess.STDOUT)


class Interpreter:
    """A Python process that runs blocks one after another in one module (`typing_python.py`)."""

    def __init__(self, folder: Path) -> None:
        self._errors: IO[str] = folder.with_name("stderr").open("w+")
        command = [sys.executable, str(HERE / "typing_python.py")]
        self._process = start(command, folder, stdin=subprocess.PIPE, stderr=self._errors)

    def run(self, block: Mapping[str, Any]) -> str:
        """Run a block and return its output. Raises `AssertionError` if the interpreter exits."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(block), file=self._process.stdin, flush=True)
        said = ""
        while not said.endswith("\0"):
            character = self._process.stdout.read(1)
            assert character, f"{said}\n{self._said_wrong()}"
            said += character
        return said[:-1]

    def close(self, *, kill: bool) -> None:
        """Stop the interpreter. Unless `kill` is set, it must exit with status 0."""
        if kill:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        failed = "" if kill or self._process.returncode == 0 else self._said_wrong()
        self._errors.close()
        assert not failed, failed

    def _said_wrong(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


@contextmanager
def serving(server: subprocess.Popen[str]) -> Iterator[str]:
    """Wait until a `weft serve` prints its address, and yield the address. Then terminate the server, which must
    exit with status 0."""
    assert server.stdout is not None
    said = ""
    while (found := re.search(r"http://([\d.]+:\d+)", said)) is None:
        line = server.stdout.readline()
        assert line, said
        said += line
    rest = threading.Thread(target=server.stdout.read, daemon=True)  # so that the pipe never fills
    rest.start()
    try:
        yield found[1]
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        rest.join(60)
        server.stdout.close()
    assert code == 0, said
