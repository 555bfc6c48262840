"""Compares many short prompts with one long prompt of the same total length, in CPU time.

    python benchmarks/prompts.py [--prompts 32] [--length 16] [--repeat 21] [--threads 2] [--model DIR]
        [--speculation none] [--guided] [--out benchmarks/results]

An engine with `--prompts` slots alternates between both. Tokens are random and new each time, so that no prefix is
reused. Every request generates one token. The measure is the CPU time of all threads, from the submission of the
requests to the end of the last one; other work on the machine hardly changes it. `ratio` is the median time of the
short prompts over that of the long one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.core.request import Request
from weft.engine.sequence import RequestGuide, Sequence
from weft_bench.report import Report

SAMPLING = SamplingParams(max_tokens=1)


class Reading:
    """Runs an engine's requests on this thread."""

    def __init__(self, llm: LLM, guide: Guide | None) -> None:
        self._engine, self._rng = llm.engine, random.Random(0)
        self._vocab_size = llm.engine.parts.model.config.vocab_size
        self._compiled = llm.compile(guide).result() if guide is not None else None

    def seconds(self, count: int, length: int) -> float:
        """Return the CPU seconds for `count` prompts of `length` tokens."""
        requests = [self._request(length) for _ in range(count)]
        before = time.process_time()
        for request in requests:
            self._engine.submit(request)
        while self._engine.has_work:
            self._engine.step()
        after = time.process_time()
        failed = [request.output.error for request in requests if request.output.error is not None]
        if failed:
            raise failed[0]
        return after - before

    def _request(self, length: int) -> Sequence:
        prompt = [self._rng.randrange(self._vocab_size) for _ in range(length)]
        guide = RequestGuide.of(self._compiled) if self._compiled is not None else None
        return Sequence(Request(prompt, SAMPLING), 0, guide)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model")
    parser.add_argument("--speculation", default="none")
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count, length = options.prompts, options.length
    config = EngineConfig(max_batch=count, max_seq_len=count * length + 16, reuse=False)
    name = options.speculation
    speculation = Speculation.none() if name == "none" else Speculation.named(name)
    kinds = {"short": (count, length), "long": (1, count * length)}
    times: dict[str, list[float]] = {each: [] for each in kinds}
    with LLM(options.model, device="cpu", speculation=speculation, engine=config) as llm:
        reading = Reading(llm, Guide.regex("[a-z ]{9,}") if options.guided else None)
        for turn in range(options.repeat + 2):
            for each, kind in kinds.items():
                found = reading.seconds(*kind)
                if turn >= 2:
                    times[each].append(found)
    rows = [
        {
            "prompts": kinds[each][0],
            "tokens": kinds[each][1],
            "median_ms": 1e3 * statistics.median(found),
            "least_ms": 1e3 * min(found),
        }
        for each, found in times.items()
    ]
    ratio = rows[0]["median_ms"] / rows[1]["median_ms"]
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    report = Report("prompts", rows, {"ratio": ratio, **settings})
    console = Console()
    report.show(console)
    if options.out:
        console.print(f"wrote {report.write(options.out)}")


if __name__ == "__main__":
    main()
