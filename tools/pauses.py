"""Pauses a process at random while it answers guided requests. Every answer must equal that of an unpaused process.

.venv/bin/python tools/pauses.py [guides|tools] [--pauses 200]
"""

from __future__ import annotations

import argparse
import itertools
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

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.grammar.tool_guides import TOOLS
from support.wasm.digits import digits
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation

# -- the paused process: several engines repeat the requests that a first one answered unpaused

PROMPT = "Text: Ada is a painter. Age 31.\nSchema: "
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
CPU = {"max_batch": 6, "max_seq_len": 288}


class Letters:
    """A matcher in Python that allows the given tokens."""

    def __init__(self, allowed: list[int]) -> None:
        self._allowed = allowed

    def accept(self, token: int) -> bool:
        return token in self._allowed

    def fill(self, row: NDArray[np.int32]) -> bool:
        words = row.view(np.uint32)
        for token in self._allowed:
            words[token // 32] |= np.uint32(1 << token % 32)
        return True

    def rollback(self, count: int) -> None: ...

    def is_terminated(self) -> bool:
        return False


class Words:
    """A recognizer in Python for repetitions of `abc`."""

    def __init__(self) -> None:
        self._length = 0

    def push_byte(self, byte: int) -> None:
        self._length += 1

    def pop_bytes(self, count: int) -> None:
        self._length -= count

    def byte_allowed(self, byte: int) -> bool:
        return byte == b"abc"[self._length % 3]

    def special_allowed(self, token: int) -> bool:
        return True


@dataclass(frozen=True)
class Workload:
    """Requests, and the engines that answer them. With `is_fresh` each round makes new engines."""

    guides: list[Guide | None]
    engines: list[tuple[Speculation, EngineConfig]]
    is_fresh: bool = False

    def ask(self, llm: LLM) -> list[tuple[list[int], str | None]]:
        """Answer with every guide at several temperatures; return token ids and errors."""
        asked = list(itertools.product(self.guides, (0.0, 0.8, 1.5)))
        sampling = [
            SamplingParams(max_tokens=60, temperature=temperature, seed=i)
            for i, (_, temperature) in enumerate(asked)
        ]
        outputs = llm.generate([PROMPT] * len(asked), guide=[guide for guide, _ in asked], sampling=sampling)
        return [(output.token_ids, str(output.error) if output.error else None) for output in outputs]


def many_kinds() -> Workload:
    """Make guides of every library, in Python and as programs; one engine treats them as untrusted."""
    with LLM(device="cpu") as llm:
        vocabulary = llm.client.built.text.vocabulary
    assert vocabulary is not None
    tokens = vocabulary.tokens
    allowed = [i for i, text in enumerate(tokens) if text and all(97 <= byte <= 122 for byte in text)]
    return Workload(
        [
            None,
            Guide.json_schema(PERSON),
            Guide.regex("[a-z]{8,40}"),
            Guide.tools(TOOLS, style="qwen_3", required=True),
            Guide.matcher(lambda: Letters(allowed)),
            Guide.recognizer(Words),
            digits(12),
        ],
        [
            (Speculation.eagle3(num_draft_tokens=3), EngineConfig(overlap=True, **CPU)),
            (Speculation.forced(Speculation.ngram(num_draft_tokens=4)), EngineConfig(overlap=False, **CPU)),
            (Speculation.eagle3(num_draft_tokens=5), EngineConfig(untrusted_guides=True, **CPU)),
        ],
    )


def tools() -> Workload:
    """Make tool calls in Llama's format, after free text or directly, with every drafter, with overlap and without."""
    calls = Guide.tools(TOOLS, style="llama", required=True)
    drafters = [
        Speculation.ngram(num_draft_tokens=8),
        Speculation.forced(Speculation.ngram(num_draft_tokens=8)),
        Speculation.eagle3(num_draft_tokens=4),
        Speculation.mtp(num_draft_tokens=8),
        Speculation.lookahead(),
        Speculation.draft_model(num_draft_tokens=3),
    ]
    return Workload(
        [calls, Guide.after("</think>", calls, max_free_tokens=8), Guide.tools(TOOLS, style="llama")],
        [
            (drafter, EngineConfig(overlap=overlap, **CPU))
            for drafter in drafters
            for overlap in (True, False)
        ],
        is_fresh=True,
    )


KINDS = {"guides": many_kinds, "tools": tools}


def tell(**what: object) -> None:
    """Print a line of JSON for the pausing process."""
    print(json.dumps(what), flush=True)


def work(name: str) -> None:
    """Answer until standard input ends."""
    workload = KINDS[name]()
    with LLM(device="cpu", engine=EngineConfig(graphs="none", **{**CPU, "max_batch": 1})) as plain:
        expected = workload.ask(plain)
    assert not any(error for _, error in expected), expected
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    made = (
        [] if workload.is_fresh else [LLM(device="cpu", speculation=s, engine=e) for s, e in workload.engines]
    )
    for llm in made:
        workload.ask(llm)
    tell(ready=True)
    while not is_over.is_set():
        for number, (speculation, engine) in enumerate(workload.engines):
            llm = made[number] if made else LLM(device="cpu", speculation=speculation, engine=engine)
            answers = workload.ask(llm)
            if not made:
                llm.close()
            wrong = [
                {"engine": number, "request": i, "got": got, "expected": plain}
                for i, (got, plain) in enumerate(zip(answers, expected, strict=True))
                if got != plain
            ]
            tell(answers=len(answers), wrong=wrong)
            if is_over.is_set():
                break
    for llm in made:
        llm.close()


# -- the process that pauses it

TESTS = Path(__file__).parents[1] / "tests"
SHORTEST_S, LONGEST_S = 1.0, 4.0
MOST_BETWEEN_S = 1.0


@dataclass
class Paused:
    """The results of a paused process. `wrong` are answers that differ or ended with an error."""

    num_pauses: int = 0
    paused_s: float = 0.0
    num_answers: int = 0
    wrong: list[Any] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Add a line of the process's output."""
        told = json.loads(line)
        self.num_answers += told.get("answers", 0)
        self.wrong += told.get("wrong", [])


def pause_at_random(kind: str, pauses: int, seed: int) -> Paused:
    """Run a process with this `kind` of work, and stop it `pauses` times for one to four seconds, alone or with its
    helpers. Raises `RuntimeError` if the process ends with an error."""
    rng, paused = random.Random(seed), Paused()
    process = subprocess.Popen(
        [sys.executable, __file__, kind, "--work"],
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Pause a process at random while it answers guided requests."
    )
    parser.add_argument("kind", nargs="?", choices=list(KINDS), default="guides")
    parser.add_argument("--pauses", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.kind)
        return 0
    paused = pause_at_random(arguments.kind, arguments.pauses, arguments.seed)
    for each in paused.wrong:
        print(each)
    print(
        f"{paused.num_pauses} pauses, {paused.paused_s:.0f} s in all: {paused.num_answers} answers, "
        f"{len(paused.wrong)} of them wrong or ended"
    )
    return int(bool(paused.wrong))


if __name__ == "__main__":
    sys.exit(main())
