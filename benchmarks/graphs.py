"""Measures the warm-up of an engine and its graphs, and checks that serving captures none.

    .venv/bin/python benchmarks/graphs.py [--model weft-tiny] [--speculation none,eagle3] [--max-batch 8]
        [--out benchmarks/results]

After the warm-up, requests of all kinds are served: different numbers at once and lengths of prompts, guided or not,
greedy or sampled. A row has:

- `warm_up_s`: the time of the warm-up.
- `graphs`: the number of captured graphs; `nodes`: of all of them.
- `python_nodes`: the nodes that call Python when a graph is replayed.
- `captures_while_serving`: the graphs that requests made the engine capture.

A row with a capture or a Python node is a failure.
"""

from __future__ import annotations

import random
import time
from typing import Annotated, Any

import typer

from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.engine.engine import Engine
from weft.errors import InputError
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report
from weft_bench.rows import Rows
from weft_bench.serve.setup import DRAFTERS

GUIDES = (None, Guide.json(), Guide.regex("[a-z]{1,9}"))
SAMPLINGS = (
    SamplingParams(max_tokens=6),
    SamplingParams(max_tokens=9, temperature=0.9, top_p=0.8, top_k=20, seed=1),
    SamplingParams(max_tokens=4, logprobs=3),
    SamplingParams(max_tokens=12, min_tokens=4, repetition_penalty=1.2),
)
MAX_SEQ_LEN = 512


def serve(llm: LLM, max_batch: int, calls: int) -> int:
    """Serve requests of all kinds, up to twice `max_batch` at once. Returns their number."""
    rng, served = random.Random(0), 0
    vocab_size = llm.engine.parts.model.config.vocab_size
    for number in range(calls):
        size = 1 if number % 2 else rng.randint(1, 2 * max_batch)
        lengths = [rng.choice([1, 7, 30, 98, 260, MAX_SEQ_LEN - 32]) for _ in range(size)]
        outputs = llm.generate(
            [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths],
            guide=[rng.choice(GUIDES) for _ in range(size)],
            sampling=[rng.choice(SAMPLINGS) for _ in range(size)],
        )
        for output in outputs:
            if output.error is not None:
                raise output.error
        served += size
    return served


def node_kinds(engine: Engine) -> list[str]:
    """Return the kinds of all nodes of the captured graphs."""
    return [kind for plan in engine.graphs.plans for kind, _ in engine.graphs.dump(plan).nodes]


def row(model: str, speculation: str, num_drafts: int, max_batch: int, calls: int) -> dict[str, Any]:
    """Warm up an engine, serve requests, and return the row."""
    config = EngineConfig(max_batch=max_batch, max_seq_len=MAX_SEQ_LEN)
    with LLM(model, device="cpu", speculation=DRAFTERS[speculation](num_drafts), engine=config) as llm:
        begin = time.perf_counter()
        llm.warm_up()
        warm_up_s = time.perf_counter() - begin
        captures = llm.engine.graphs.num_captures
        requests = serve(llm, max_batch, calls)
        captured = llm.engine.graphs.num_captures - captures
        kinds = node_kinds(llm.engine)
        return {
            "speculation": speculation,
            "K": 0 if speculation == "none" else num_drafts,
            "max_batch": max_batch,
            "warm_up_s": round(warm_up_s, 2),
            "graphs": len(llm.engine.graphs.plans),
            "nodes": len(kinds),
            "python_nodes": kinds.count("python"),
            "requests": requests,
            "captures_while_serving": captured,
        }


def run(model: str, speculation: str, num_drafts: int, max_batch: int, calls: int) -> Report:
    """Return a row for each drafter."""
    rows = Rows("graphs")
    for name in (name.strip() for name in speculation.split(",")):
        if name not in DRAFTERS:
            raise InputError(f"speculation is {name!r}; it must be of {', '.join(DRAFTERS)}")
        with rows.trying(speculation=name):
            rows.append(row(model, name, num_drafts, max_batch, calls))
    for each in rows:
        for key in ("python_nodes", "captures_while_serving"):
            if each[key]:
                rows.failures.append(
                    {"speculation": each["speculation"], "error": f"{key} is {each[key]}, not 0"}
                )
    return rows.report({"model": model})


def main(
    model: Annotated[str, typer.Option(help="A model's name or directory.")] = "weft-tiny",
    speculation: Annotated[str, typer.Option(help="Drafters, as in `weft bench serve`.")] = "none,eagle3",
    num_drafts: Annotated[int, typer.Option("--num-draft-tokens", "-k", min=1)] = 3,
    max_batch: Annotated[int, typer.Option(min=1)] = 8,
    calls: Annotated[int, typer.Option(min=1, help="Calls of `generate`.")] = 24,
    out: OutOption = None,
) -> None:
    """Measure the warm-up of an engine and its graphs, and check that serving captures none."""
    finish(measured(out, lambda: run(model, speculation, num_drafts, max_batch, calls)), out)


if __name__ == "__main__":
    script(main)
