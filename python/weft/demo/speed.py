"""Measures the speedup from drafts and the cost of a guide."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from weft.core import Output
from weft.demo.breaks import guide_of
from weft.demo.streamed import SAMPLING
from weft.llm import LLM
from weft.tiny.records import Record

Outputs = Sequence[Output]
ROUNDS = 3


def show(console: Console, fast: LLM, plain: LLM, records: Sequence[Record]) -> None:
    """Print a table of both engines with and without a guide, and a summary."""
    console.rule("what drafts gain", characters="-")
    table = Table(title=f"{len(records)} prompts, one at a time, greedy, on {fast.runtime.device}")
    for name in ("guide", "drafts", "tokens/s", "tokens per iteration"):
        table.add_column(name, justify="left" if name in ("guide", "drafts") else "right")
    for guided in (False, True):
        without, drafted = measure((plain, fast), records, guided)
        for drafts, outputs in (("none", without), ("EAGLE3, 3", drafted)):
            table.add_row(
                "JSON schema" if guided else "none", drafts, f"{speed(outputs):.0f}", per_iteration(outputs)
            )
    console.print(table)
    console.print(told(without, drafted) + "\n")


def measure(llms: Sequence[LLM], records: Sequence[Record], guided: bool) -> list[list[Output]]:
    """The fastest of `ROUNDS` answers to each prompt, for each engine. The engines alternate, so that changes in the
    machine's load affect both. A first round, which compiles guides and captures graphs, does not count."""
    best: list[list[Output]] = [[] for _ in llms]
    for record in records:
        guide = guide_of(record.schema) if guided else None
        rounds = [
            [llm.generate(record.prompt, guide=guide, sampling=SAMPLING) for llm in llms]
            for _ in range(ROUNDS + 1)
        ]
        for mine, answers in zip(best, zip(*rounds[1:], strict=True), strict=True):
            mine.append(max(answers, key=lambda output: output.stats.tokens_per_second))
    return best


def speed(outputs: Outputs) -> float:
    """The median over prompts of tokens per second."""
    return statistics.median(output.stats.tokens_per_second for output in outputs)


def per_iteration(outputs: Outputs) -> str:
    """The tokens per iteration over all answers, as text."""
    iterations = sum(output.stats.iterations for output in outputs)
    return f"{sum(output.stats.output_tokens for output in outputs) / max(1, iterations):.2f}"


def told(without: Outputs, drafted: Outputs) -> str:
    """The summary: the speedup from drafts under the guide, and the number of equal answers."""
    pairs = list(zip(without, drafted, strict=True))
    ratios = [b.stats.tokens_per_second / a.stats.tokens_per_second for a, b in pairs]
    same = sum(a.text == b.text for a, b in pairs)
    return (
        f"Under the guide, drafts give {statistics.median(ratios):.2f} times the tokens/s (median over prompts; "
        f"{min(ratios):.2f} to {max(ratios):.2f}), and the same text in {same} of {len(pairs)}. Other "
        "programs on this machine change the times."
    )
