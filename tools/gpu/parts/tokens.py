"""Compares the tokens of weft-tiny with every drafter, with and without guides, to plain decoding on the CPU.

tokens.py reference FILE     write the CPU's tokens, when the kit is packed
tokens.py NAME...            one, none, split (graphs) or polling (host tasks), each with its drafters
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from answers import DEVICE, ON_GPU, answers

from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import Graphs, HostTasks

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 12}},
    "required": ["a", "b"],
}
GUIDES = {"free": None, "schema": Guide.json_schema(SCHEMA), "regex": Guide.regex("[a-z ]{9,40}!")}
PROMPTS = ["Write JSON.", "x", "The quick brown fox jumps over the lazy dog. " * 12]
SHAPED = dict[str, Any](top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.1, min_tokens=4)
SAMPLING = {
    "greedy": SamplingParams(max_tokens=24),
    "seeded": SamplingParams(max_tokens=24, temperature=1.0, seed=5),
    "shaped": SamplingParams(max_tokens=24, temperature=0.9, seed=5, **SHAPED),
}
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "mtp": Speculation.mtp(num_draft_tokens=3),
    "draft_model": Speculation.draft_model(num_draft_tokens=3),
    "ngram": Speculation.ngram(num_draft_tokens=3),
    "forced": Speculation.forced(num_draft_tokens=3),
    "lookahead": Speculation.lookahead(),
}
ALL = tuple(SPECULATIONS)
FEW = ("none", "eagle3", "ngram")
CASES: dict[str, tuple[Graphs, HostTasks, tuple[str, ...]]] = {
    "one": ("one", "callback", ALL),
    "none": ("none", "callback", FEW),
    "split": ("split", "callback", FEW),
    "polling": ("one", "polling", ("none", "eagle3", "forced", "ngram")),
}
Cells = dict[str, list[list[int] | str]]
"""The tokens or the error of each prompt, by sampling and guide."""


def decode(device: str, speculation: str, graphs: Graphs, host_tasks: HostTasks) -> tuple[Cells, str]:
    """Decode all prompts with one engine. Returns the cells and a description."""
    begin = time.perf_counter()
    engine = EngineConfig(max_batch=2, max_seq_len=512, graphs=graphs, host_tasks=host_tasks)
    with LLM(device=device, dtype="float32", speculation=SPECULATIONS[speculation], engine=engine) as llm:
        said = f"built in {time.perf_counter() - begin:.1f} s"
        cells: Cells = {}
        for name, sampling in SAMPLING.items():
            for kind, guide in GUIDES.items():
                outputs = llm.generate(PROMPTS, guide=guide, sampling=sampling)
                cells[f"{name}/{kind}"] = [o.token_ids if o.error is None else repr(o.error) for o in outputs]
        said += f", {llm.num_graph_replays} replays"
        if llm.engine.config.host_tasks != host_tasks:
            said += f", BUT host tasks by {llm.engine.config.host_tasks}"
    return cells, said


def parting(got: list[int] | str, expected: list[int] | str) -> str:
    """Return the index of the first token that differs, or the error of an answer that has one."""
    if isinstance(got, str):
        return got[:60]
    pairs = enumerate(zip(got, expected, strict=False))
    return str(next((i for i, (a, b) in pairs if a != b), f"length {len(got)}"))


def compare(reference: Cells, speculation: str, graphs: Graphs, host_tasks: HostTasks) -> dict[str, Any]:
    cells, said = decode(DEVICE, speculation, graphs, host_tasks)
    parted = {
        cell: [parting(a, b) for a, b in zip(cells[cell], reference[cell], strict=True) if a != b]
        for cell in reference
        if cells[cell] != reference[cell]
    }
    found: dict[str, Any] = {
        "cells": f"{len(reference) - len(parted)} of {len(reference)} as the CPU's",
        "": said,
    }
    return {**found, "first tokens that differ": parted} if parted else found


def main(names: list[str]) -> None:
    if names[0] == "reference":
        Path(names[1]).write_text(json.dumps(decode("cpu", "none", "one", "callback")[0]))
        return
    reference = json.loads(Path(__file__).with_name("reference.json").read_text())
    with answers(f"tokens-{'-'.join(names)}") as part:
        for name in names:
            graphs, host_tasks, speculations = CASES[name]
            for speculation in speculations if ON_GPU else speculations[1:2]:
                question = f"tokens, {name}, {speculation}"
                part.ask(question, compare, reference, speculation, graphs, host_tasks, needs=5)


if __name__ == "__main__":
    main(sys.argv[1:])
