"""Counts the launches of the host that read a prompt on a GPU. It needs no GPU: the engine runs on fake tensors.

    .venv/bin/python benchmarks/host_launches.py [--tokens 2048] [--shape llama-8b-eagle3] [--out benchmarks/results]

A launch is a kernel, a copy, a host function or a graph, from the request's first step up to its first token. All
graphs are captured before. Rows differ in the limit of a step (`max_num_tokens`), and in whether an
EAGLE3 head drafts. Triton must be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.engine.host_launches import prompt_launches
from weft_bench.cli.app import OutOption, finish, measured, script
from weft_bench.engine.models import shape_of
from weft_bench.report import Report
from weft_bench.rows import Rows

STEP_TOKENS = (None, 256)
NUM_DRAFTS = (0, 3)


def run(shape: str, num_tokens: int, step_tokens: Sequence[int | None] = STEP_TOKENS) -> Report:
    """Return a row for each size of a step and number of drafts."""
    rows = Rows("host_launches")
    for limit in step_tokens:
        for num_drafts in NUM_DRAFTS:
            with rows.trying(max_num_tokens=limit, drafts=num_drafts):
                counts = prompt_launches(shape_of(shape), num_tokens, limit, num_drafts)
                total = sum(count for kind, count in counts.items() if kind != "steps")
                settings = {"max_num_tokens": limit or "default", "drafts": num_drafts}
                rows.append({**settings, **counts, "launches": total})
    return rows.report({"shape": shape, "prompt_tokens": num_tokens})


def main(
    tokens: Annotated[int, typer.Option(min=2, help="Length of the prompt.")] = 2048,
    shape: Annotated[str, typer.Option(help="Of the model: small or llama-8b-eagle3.")] = "llama-8b-eagle3",
    out: OutOption = None,
) -> None:
    """Count the launches of the host that read a prompt on a GPU."""
    finish(measured(out, lambda: run(shape, tokens)), out)


if __name__ == "__main__":
    script(main)
