"""Validates finished answers against their JSON schemas with the `jsonschema` package.

Only answers of guides with `strict=False` are validated. A client's pattern may keep Python's `re` busy forever with
the GIL held, so a separate process does the work (`verdict_worker.py`). It starts on first use or by `Verdicts.start`,
and dies if one answer takes too long.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from weft.core.forks import IGNORE_SIGNALS
from weft.grammar.guide import Guide
from weft.grammar.kinds.after import KIND as AFTER
from weft.grammar.kinds.after import After
from weft.grammar.vocabulary.tokenizer import Vocabulary

_log = logging.getLogger(__name__)

CPU_S = 2.0
MEMORY_BYTES = 512 << 20
START = IGNORE_SIGNALS + "import sys, runpy; sys.path[:] = {path!r}; sys.argv[1:] = {args!r}; "
START += "runpy.run_path({file!r}, run_name='__main__')"
WORKER = Path(__file__).with_name("verdict_worker.py")


class Verdicts:
    """Validates answers against their schemas in a worker process. Thread-safe. Call `close` when done."""

    def __init__(self, cpu_s: float = CPU_S) -> None:
        self._args = [str(cpu_s), str(MEMORY_BYTES)]
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._end: Callable[[], object] = lambda: None

    def obeys(self, guide: Guide, text: str) -> bool | None:
        """Return whether `text` satisfies the JSON schema of `guide`; None after `close`, and if `jsonschema` can't
        decide that in time."""
        job = json.dumps([json.loads(guide.source), text]).encode() + b"\n"
        with self._lock:
            worker = self._started()
            if worker is None or worker.stdin is None or worker.stdout is None:
                return None
            try:
                worker.stdin.write(job)
                worker.stdin.flush()
                verdict: bool | None = json.loads(worker.stdout.readline())
                return verdict
            except (OSError, ValueError):  # the worker exceeded its time and has ended
                _log.warning("the helper process %d, which judges answers, died", worker.pid)
                self._end()
                self._worker = None
                return None

    def start(self) -> None:
        """Start the worker process, so that the first answer does not wait for its start. Does not wait itself."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the worker process."""
        self._is_closed = True
        self._end()

    def _started(self) -> subprocess.Popen[bytes] | None:
        if self._is_closed:
            return None
        if self._worker is None:
            command = START.format(path=sys.path, args=self._args, file=str(WORKER))
            self._worker = subprocess.Popen(
                [sys.executable, "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._end = weakref.finalize(self, _end, self._worker)
        return self._worker


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def is_judged(guide: Guide) -> bool:
    """Whether answers of a guide are validated: it, or the guide after all its triggers, is a JSON schema that is not
    strict."""
    while guide.kind == AFTER:
        guide = After.of(guide).guide
    return guide.kind == "json_schema" and not guide.strict


def guided_part(
    guide: Guide,
    text: str,
    tokens: Sequence[int],
    vocabulary: Vocabulary,
    decode: Callable[[Sequence[int]], str],
) -> tuple[Guide, str]:
    """Return the guide behind all triggers, and the part of an answer that it applies to. Without a trigger, both are
    the given ones."""
    while guide.kind == AFTER:
        after = After.of(guide)
        guide, trigger = after.guide, after.trigger
        token = vocabulary.special_names.get(trigger) if isinstance(trigger, str) else trigger
        if token is not None:
            tokens = tokens[tokens.index(token) + 1 :] if token in tokens else ()
            text = decode(tokens)
        else:
            text = text.partition(str(trigger))[2]
    return guide, text
