"""Compares guided decoding at batch 1 beside another busy process on each core with decoding on a quiet machine.

    .venv/bin/python benchmarks/busy.py [--model weft-tiny] [--speculation none,eagle3] [-k 5]
        [--out benchmarks/results]

A busy process computes without a pause and is bound to its core. In quiet turns these processes are stopped. Each
round has two turns of both kinds, in palindromic order. In a turn each drafter answers all prompts. Speeds are
tokens per second of whole requests with their prompts, and `ratio` is the median over rounds of busy ÷ quiet. With two
processes on each core, a fair scheduler leaves half of it.

The report needs a machine without other work: run it alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from weft import LLM, EngineConfig, SamplingParams
from weft.errors import InputError
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.heldout import PromptSet, prompt_set
from weft_bench.report import Report
from weft_bench.serve.setup import DRAFTERS

BUSY = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
print(flush=True)
while os.getppid() == int(sys.argv[2]):
    for _ in range(1_000_000):
        pass
"""
KINDS = ("quiet", "busy", "busy", "quiet")
"""The turns of a round."""


class Busy:
    """A process on each of this process's cores, which computes while `running`."""

    def __init__(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", BUSY, str(core), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            for core in cores
        ]
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
        self._stop()

    @contextmanager
    def running(self, is_running: bool) -> Iterator[None]:
        """Let the processes compute in the `with` block, or leave them stopped."""
        if not is_running:
            yield
            return
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._stop()

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.communicate()

    def _stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)
        for process in self.processes:
            os.waitpid(process.pid, os.WUNTRACED)


def speed(llm: LLM, prompts: PromptSet, max_tokens: int) -> float:
    """Answer every prompt, one after another. Returns the tokens per second."""
    tokens, begin = 0, time.perf_counter()
    for prompt, guide in zip(prompts.prompts, prompts.guides, strict=True):
        output = llm.generate(prompt, guide=guide, sampling=SamplingParams(max_tokens=max_tokens))
        tokens += len(output.token_ids)
    return tokens / (time.perf_counter() - begin)


def run(model: str, speculation: str, num_drafts: int, prompts: int, max_tokens: int, rounds: int) -> Report:
    """Return a row for each drafter."""
    names = [name.strip() for name in speculation.split(",")]
    unknown = [name for name in names if name not in DRAFTERS]
    if unknown:
        raise InputError(f"speculation is {unknown[0]!r}; it must be of {', '.join(DRAFTERS)}")
    config = EngineConfig(max_batch=1, reuse=False)
    rates: dict[str, list[dict[str, list[float]]]] = {name: [] for name in names}
    with ExitStack() as stack:
        llms = {
            name: stack.enter_context(
                LLM(model, device="cpu", speculation=DRAFTERS[name](num_drafts), engine=config)
            )
            for name in names
        }
        asked = prompt_set("extraction", prompts, llms[names[0]])
        for llm in llms.values():
            llm.warm_up()
            speed(llm, asked, max_tokens)
        busy = Busy()
        stack.callback(busy.close)
        for _ in range(rounds):
            for name in names:
                rates[name].append({kind: [] for kind in KINDS})
            for kind in KINDS:
                with busy.running(kind == "busy"):
                    for name, llm in llms.items():
                        rates[name][-1][kind].append(speed(llm, asked, max_tokens))
    rows = [row(name, num_drafts, rates[name]) for name in names]
    summary = {
        "model": model,
        "busy_processes": len(busy.processes),
        "prompts": prompts,
        "max_tokens": max_tokens,
        "rounds": rounds,
    }
    return Report("busy" if model == "weft-tiny" else f"busy-{Path(model).name}", rows, summary)


def row(name: str, num_drafts: int, rounds: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Return a drafter's row. A round has two speeds of each kind."""
    ratios = [sum(each["busy"]) / sum(each["quiet"]) for each in rounds]
    return {
        "drafter": name,
        "K": 0 if name == "none" else num_drafts,
        "quiet_tokens_per_s": round(median(sum(each["quiet"]) / 2 for each in rounds), 1),
        "busy_tokens_per_s": round(median(sum(each["busy"]) / 2 for each in rounds), 1),
        "ratio": round(median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


def main(
    model: Annotated[str, typer.Option(help="A model's name or directory.")] = "weft-tiny",
    speculation: Annotated[str, typer.Option(help="Drafters, as in `weft bench serve`.")] = "none,eagle3",
    num_drafts: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=1)] = 5,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts of a turn.")] = 12,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum length of an answer.")] = 96,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    out: OutOption = None,
) -> None:
    """Compare decoding beside a busy process on each core with decoding on a quiet machine."""
    finish(measured(out, lambda: run(model, speculation, num_drafts, prompts, max_tokens, rounds)), out)


if __name__ == "__main__":
    script(main)
