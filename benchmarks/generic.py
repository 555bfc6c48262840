"""Compares weft's module of an architecture with transformers' code over weft's operations, for one model.

    .venv/bin/python benchmarks/generic.py [--model smollm2] [--rounds 5] [--out benchmarks/results]

The two engines take turns, and a row has the best rate of each: tokens per second of greedy answers from `batch`
prompts, and of reading one prompt (`batch` 0). `ratio` is weft's rate ÷ that of transformers' code.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer

from weft import LLM, EngineConfig, SamplingParams, registry
from weft.config import model_directory
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.report import Report

BATCHES = (0, 1, 8)
NUM_TOKENS, PROMPT_TOKENS = 32, 384


def make(directory: Path, is_generic: bool) -> LLM:
    """Load the model by weft's module, or by transformers' code."""
    with patch.dict(registry.MODELS, clear=is_generic):
        llm = LLM(directory, device="cpu", engine=EngineConfig(max_batch=8, max_seq_len=512, reuse=False))
    llm.warm_up()
    return llm


def rate(llm: LLM, batch: int) -> float:
    """Return the tokens per second of a run."""
    num_tokens = NUM_TOKENS if batch else 1
    length = 8 if batch else PROMPT_TOKENS
    prompts = [[10 + i + j for j in range(length)] for i in range(batch or 1)]
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, min_tokens=num_tokens)
    began = time.perf_counter()
    llm.generate(prompts, sampling)
    return (batch * num_tokens or length) / (time.perf_counter() - began)


def run(model: str, rounds: int) -> Report:
    """Return a row for each batch."""
    directory = model_directory(model)
    rows: list[dict[str, Any]] = []
    with make(directory, False) as own, make(directory, True) as generic:
        for batch in BATCHES:
            rates = [(rate(own, batch), rate(generic, batch)) for _ in range(rounds + 1)][1:]
            ours, theirs = (max(each) for each in zip(*rates, strict=True))
            rows.append({"batch": batch, "weft": ours, "transformers": theirs, "ratio": ours / theirs})
    return Report("generic", rows, {"model": directory.name, "rounds": rounds})


def main(
    model: Annotated[
        str, typer.Option(help="A model's name or directory. weft has a module for it.")
    ] = "smollm2",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 5,
    out: OutOption = None,
) -> None:
    """Compare weft's module of an architecture with transformers' code over weft's operations."""
    finish(measured(out, lambda: run(model, rounds)), out)


if __name__ == "__main__":
    script(main)
