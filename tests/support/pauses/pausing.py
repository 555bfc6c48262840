"""Pauses of another process: how many, how long, and what became of its answers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2]
SHORTEST_S, LONGEST_S = 1.0, 4.0
MOST_BETWEEN_S = 1.0


@dataclass
class Paused:
    """What a paused process has answered. `wrong` are answers that differ, or ended with an error."""

    num_pauses: int = 0
    paused_s: float = 0.0
    num_answers: int = 0
    wrong: list[Any] = field(default_factory=list)

    def take(self, line: str) -> None:
        """What it told."""
        told = json.loads(line)
        self.num_answers += told.get("answers", 0)
        self.wrong += told.get("wrong", [])


def pause_at_random(kind: str, pauses: int, seed: int) -> Paused:
    """Let a process do its `kind` of work (`work.py`), and stop it so many times for one to four seconds: by itself, or
    with its helpers, as a machine is. Raises `RuntimeError` where it ends with an error."""
    rng, paused = random.Random(seed), Paused()
    process = subprocess.Popen(
        [sys.executable, "-m", "support.pauses.work", kind],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        try:
            if process.stdout.readline():
                reader = threading.Thread(target=lambda: [paused.take(line) for line in process.stdout or ()])
                reader.start()
                for _ in range(pauses):
                    time.sleep(rng.uniform(0, MOST_BETWEEN_S))
                    if process.poll() is not None:
                        break
                    _pause(process.pid, rng.uniform(SHORTEST_S, LONGEST_S), rng.random() < 0.5, paused)
                process.stdin.close()
                reader.join()
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status != 0:
        raise RuntimeError(f"the process ended with status {status}")
    return paused


def _pause(pid: int, seconds: float, with_helpers: bool, paused: Paused) -> None:
    send = os.killpg if with_helpers else os.kill
    began = time.monotonic()
    send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    send(pid, signal.SIGCONT)
    paused.num_pauses += 1
    paused.paused_s += time.monotonic() - began
