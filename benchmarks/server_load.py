"""Loads `weft serve` with 64 streaming clients, some of them slow, disconnecting or hostile, and `LLM` with the same
prompts.

    python benchmarks/server_load.py [--minutes 10] [--rounds 6] [--seconds 20] [--out benchmarks/results]

First a mix of clients runs for `--minutes`. Of 64 clients, 4 read slowly, 2 stall for longer than the server waits,
6 disconnect early, and 4 are hostile. Every other prompt is guided. Only errors that the clients cause may occur.
Memory is sampled every second. Then 64 reading clients alternate with the same prompts through `LLM.stream` on 64
threads (server, LLM, LLM, server), so that drift cancels. `ratio` is the median of the rounds. `loop_us_per_token`
is the CPU time of the server's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from server.clients import Clients
from server.process import Server, serving
from server.prompts import MAX_TOKENS, Asked, prompts
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft_bench.report import Report

CLIENTS, SLOW, STALLING, LEAVING, HOSTILE = 64, 4, 2, 6, 4
BATCH = 32
SLOW_READER_S = 2.0
OPTIONS = ("--max-batch", str(BATCH), "--trust-guides")


def patience(folder: Path) -> str:
    """Write a configuration with a short timeout for slow readers. Returns its path."""
    path = folder / "server.toml"
    path.write_text(f"[server]\nslow_reader_s = {SLOW_READER_S}\n")
    return str(path)


def soak(server: Server, asked: list[Asked], minutes: float) -> dict[str, Any]:
    """Run the mix of clients, and sample memory."""
    clients, memory = Clients(server.port, asked), list[float]()
    readers = CLIENTS - SLOW - STALLING - LEAVING - HOSTILE

    async def watched() -> None:
        running = asyncio.create_task(clients.run(minutes * 60, readers, SLOW, STALLING, LEAVING, HOSTILE))
        while not running.done():
            memory.append(server.memory_mib)
            await asyncio.wait({running}, timeout=1.0)
        await running

    before = server.loop_s
    asyncio.run(watched())
    counts, tenth = clients.counts, max(len(memory) // 10, 1)
    return {
        "minutes": minutes,
        "requests": counts.requests,
        "left": counts.left,
        "stalled": counts.stalled,
        "given_up": counts.given_up,
        "refused": counts.refused,
        "errors": len(counts.errors),
        "first_errors": counts.errors[:5],
        "tokens_per_s": round(counts.tokens / (minutes * 60)),
        "events_per_token": round(counts.events / max(counts.tokens, 1), 2),
        "first_token_p50_ms": round(1e3 * statistics.median(counts.first_s), 1),
        "loop_us_per_token": round((server.loop_s - before) / max(counts.tokens, 1) * 1e6, 1),
        # Caches fill in the first tenth. KV pages become resident when they are first used.
        "memory_mib_by_tenth": [
            round(statistics.median(memory[begin : begin + tenth]), 1)
            for begin in range(0, 10 * tenth, tenth)
            if memory[begin:]
        ],
        "memory_mib_max": round(max(memory), 1),
    }


def through_server(server: Server, asked: list[Asked], seconds: float, seed: int) -> dict[str, float]:
    """Return the tokens per second of clients that read at full speed."""
    clients = Clients(server.port, asked, seed)
    before, total, began = server.loop_s, server.total_s, time.monotonic()
    asyncio.run(clients.run(seconds, CLIENTS))
    if clients.counts.errors:
        raise RuntimeError(clients.counts.errors[0])
    tokens, elapsed = clients.counts.tokens, time.monotonic() - began
    return {
        "tokens_per_s": tokens / elapsed,
        "loop_us_per_token": (server.loop_s - before) / tokens * 1e6,
        "process_us_per_token": (server.total_s - total) / tokens * 1e6,
    }


def through_llm(llm: LLM, asked: list[Asked], seconds: float, seed: int) -> float:
    """Return the tokens per second of the same number of threads that stream."""
    end, tokens = time.monotonic() + seconds, [0] * CLIENTS
    sampling = SamplingParams(max_tokens=MAX_TOKENS)

    def client(number: int) -> None:
        draw = random.Random(seed * CLIENTS + number)
        while time.monotonic() < end:
            one = draw.choice(asked)
            guide = Guide.json_schema(one.schema, strict=False) if one.schema is not None else None
            prompt = llm.chat_tokens([{"role": "user", "content": one.prompt}])
            for piece in llm.stream(prompt, guide=guide, sampling=sampling):
                tokens[number] += len(piece.token_ids)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(tokens) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    asked, rows, summary = prompts(256), list[dict[str, Any]](), dict[str, Any]()
    for name, speculation in (
        ("eagle3", Speculation.eagle3(num_draft_tokens=3)),
        ("none", Speculation.none()),
    ):
        with (
            TemporaryDirectory() as folder,
            serving(*OPTIONS, "--speculation", name, "--config", patience(Path(folder))) as server,
        ):
            if name == "eagle3" and args.minutes:
                summary["mix"] = soak(server, asked, args.minutes)
            with LLM(speculation=speculation, engine=EngineConfig(max_batch=BATCH)) as llm:
                through_server(server, asked, 3, 0)
                through_llm(llm, asked, 3, 0)
                rows += [_round(name, server, llm, asked, args.seconds, seed) for seed in range(args.rounds)]
        mine = [row for row in rows if row["drafter"] == name]
        if mine:
            summary[f"{name}_ratio"] = round(statistics.median(row["ratio"] for row in mine), 3)
            summary[f"{name}_loop_us_per_token"] = statistics.median(row["loop_us_per_token"] for row in mine)
    report = Report("server_load", rows, summary)
    report.show(Console())
    if args.out is not None:
        report.write(args.out)


def _round(
    name: str, server: Server, llm: LLM, asked: list[Asked], seconds: float, seed: int
) -> dict[str, Any]:
    first = through_server(server, asked, seconds, seed)
    alone = [through_llm(llm, asked, seconds, seed) for _ in range(2)]
    second = through_server(server, asked, seconds, seed)
    served = (first["tokens_per_s"] + second["tokens_per_s"]) / 2
    return {
        "drafter": name,
        "server_tokens_per_s": round(served),
        "llm_tokens_per_s": round(statistics.mean(alone)),
        "ratio": round(served / statistics.mean(alone), 3),
        "loop_us_per_token": round((first["loop_us_per_token"] + second["loop_us_per_token"]) / 2, 1),
        "process_us_per_token": round(
            (first["process_us_per_token"] + second["process_us_per_token"]) / 2, 1
        ),
    }


if __name__ == "__main__":
    main()
