"""A judge in a separate process. The process is restarted after a schema takes too long or crashes it."""

from __future__ import annotations

import multiprocessing
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft_bench.grammar.schema_files import SchemaFile
from weft_bench.grammar.schema_run import Compiled, Settings, Walked, serve

START_LIMIT_S = 300.0
WALK_LIMITS = 4  # the time limit of a file's instances, in multiples of the compile limit


@dataclass
class Result:
    """The result of a file. `outcome` is "compiled", "refused", "timeout", "crashed", "error" or "unreadable".
    `text` is the reason, unless the file compiled. `walked` is None unless all instances were walked."""

    file: SchemaFile
    outcome: str
    text: str = ""
    compiled: Compiled | None = None
    walked: Walked | None = None


class JudgeProcess:
    """Judges files one after another. Each may compile for at most `timeout_s`. Call `close`, or use `with`."""

    start_method = "spawn"  # a fork would inherit locks that other threads hold

    def __init__(self, settings: Settings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="weft-bench-")
        self._log = Path(self._folder.name) / "stderr"
        self._process: Any = None

    def judge(self, file: SchemaFile) -> Result:
        """Return the result of a file. Nothing in the file makes it raise."""
        if file.problem:
            return Result(file, "unreadable", file.problem)
        if self._process is None:
            self._start()
        result = Result(file, "compiled")
        try:
            self._connection.send(file)
            result.compiled = self._receive(Compiled, self._timeout_s, "compiling", result)
            if result.compiled is not None:
                result.walked = self._receive(
                    Walked, WALK_LIMITS * self._timeout_s, "walking its instances", result
                )
        except (EOFError, OSError):
            result.outcome, result.text = "crashed", self._last_words()
            self._end()
        return result

    def close(self) -> None:
        """End the process."""
        self._end()
        self._folder.cleanup()

    def __enter__(self) -> JudgeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, self._settings, str(self._log)), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            if self._connection.poll(START_LIMIT_S) and self._connection.recv() == "ready":
                return
            words = f"it was not ready within {START_LIMIT_S:g} s"
        except EOFError:
            words = self._last_words()
        self._end()
        raise WeftError(f"the process that judges {self._settings.backend} did not start: {words}")

    def _receive(self, kind: type, limit_s: float, doing: str, result: Result) -> Any:
        if not self._connection.poll(limit_s):
            result.outcome, result.text = "timeout", f"{doing} took longer than {limit_s:g} s"
            self._end()
            return None
        message = self._connection.recv()
        if isinstance(message, kind):
            return message
        result.outcome, result.text = message
        return None

    def _last_words(self) -> str:
        self._process.join(timeout=10)
        code = self._process.exitcode
        name = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return f"{name}: {lines[-1][-300:]}" if lines else name

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.join()
        self._process.close()
        self._connection.close()
        self._process = None
