"""The runner's connection to an engine's process. It exchanges lines, and stops the process during the turns of
others."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .protocol import Answers, Config, Prompt, Request, answers_of, to_line


class SideError(Exception):
    """An engine failed or exceeded its time limit."""


class SideProcess:
    """The process of an engine, in its own session. Its stderr goes to the file `log`. A reply may take `seconds`.
    `versions` are known after `open`. Raises `SideError` if the program does not exist.

    Between replies a signal stops the whole process, so that none of its threads spins during another engine's turn.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, seconds: float
    ) -> None:
        self.versions: dict[str, str] = {}
        self.limit_s = seconds
        self._is_closed = False
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = _started(command, env, cwd, log)
        self._unread = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def open(self, config: Config) -> None:
        """Load the engine. Raises `SideError` if that fails."""
        self.versions = self._ask({"do": "open", "config": asdict(config)})["versions"]

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compile the prompts' schemas."""
        self._ask({"do": "prepare", "prompts": [asdict(prompt) for prompt in prompts]})

    def answer(self, request: Request) -> Answers:
        """Answer a request."""
        return answers_of(self._ask({"do": "answer", "request": asdict(request)}))

    def close(self) -> None:
        """End the process and its children. Closing it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._signal(signal.SIGCONT)
        with suppress(OSError, subprocess.TimeoutExpired):
            if self.process.poll() is None and self.process.stdin is not None:
                self.process.stdin.write(to_line({"do": "close"}))
                self.process.wait(10.0)
        self._signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        if self._is_closed:
            raise SideError("it is closed")
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(to_line(message))
            reply: dict[str, Any] = json.loads(self._line())
        except OSError as error:
            raise SideError(f"its process is gone ({error}); {self._last_words()}") from error
        self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise SideError(reply["error"])
        return reply

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        end = time.monotonic() + self.limit_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._signal(signal.SIGKILL)
                raise SideError(f"no reply within {self.limit_s:g} s")
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            if not read:
                raise SideError(f"its process ended; {self._last_words()}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"last on stderr: {lines[-1][:300]}" if lines else "stderr is empty"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _started(command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as errors:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SideError(f"{command[0]}: {error.strerror}") from error
