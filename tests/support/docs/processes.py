"""The processes of a reader: an interpreter that is typed into, shells, servers."""

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
    """That of a reader who works in `folder`: the commands of this Python's environment come first."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CURL_HOME": str(HERE),  # whose .curlrc has curl fail where a server refuses
        "ZIG_GLOBAL_CACHE_DIR": str(folder.parent.with_name("zig")),  # one for all pages
    }


def start(command: list[str], folder: Path, **options: Any) -> subprocess.Popen[str]:
    """A process in a reader's folder, whose output comes through a pipe."""
    started: subprocess.Popen[str] = subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, **options
    )
    return started


def start_shell(code: str, folder: Path) -> subprocess.Popen[str]:
    """A shell that ends at the first command that fails."""
    return start(["bash", "-euo", "pipefail", "-c", code], folder, stderr=subprocess.STDOUT)


class Interpreter:
    """A Python that blocks are typed into, one after the other (`typing_python.py`)."""

    def __init__(self, folder: Path) -> None:
        self._errors: IO[str] = folder.with_name("stderr").open("w+")
        command = [sys.executable, str(HERE / "typing_python.py")]
        self._process = start(command, folder, stdin=subprocess.PIPE, stderr=self._errors)

    def run(self, block: Mapping[str, Any]) -> str:
        """What a block prints. Raises `AssertionError` for one that ends the interpreter."""
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
        """Have it end; unless it is killed, it must end well."""
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
    """The address of a `weft serve` that was started, once it says so. At the end it is asked to end, and ends well."""
    assert server.stdout is not None
    said = ""
    while (found := re.search(r"http://([\d.]+:\d+)", said)) is None:
        line = server.stdout.readline()
        assert line, said
        said += line
    rest = threading.Thread(target=server.stdout.read, daemon=True)  # what it says does not fill the pipe
    rest.start()
    try:
        yield found[1]
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
        rest.join(60)
        server.stdout.close()
    assert code == 0, said
