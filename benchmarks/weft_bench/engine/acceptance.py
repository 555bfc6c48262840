"""Measures the tokens per iteration of every drafter, with guided and unguided drafts, for each number of drafts.

All drafters answer the same held-out prompts under the same schemas. Sampling is coupled, so the answers are those
of decoding without drafts. Answers that differ, because rounding decided between two tokens, are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import track

from weft.config import MAX_DRAFT_TOKENS, EngineConfig
from weft.llm import LLM
from weft_bench.engine.drafters import VARIANTS, Variant
from weft_bench.engine.simulated import simulate_acceptance
from weft_bench.heldout import PromptSet, acceptance_length, count_differing, prompt_sets
from weft_bench.report import Report
from weft_bench.rows import Rows

BATCH = 16
NONE = "none"


def run(
    device: str = "auto",
    model: Path | None = None,
    prompts: int = 64,
    max_k: int = MAX_DRAFT_TOKENS,
    temperature: float = 0.0,
    simulate: float | None = None,
    variants: Sequence[Variant] = VARIANTS,
) -> Report:
    """Return a row for each set of prompts and drafter, with a column for each number of drafts. The values are mean
    tokens per iteration that verified drafts.

    `simulate` forces this many tokens per iteration (`simulated.py`), and the report says so.
    """
    config = EngineConfig(max_batch=BATCH)
    if simulate is not None:  # a graph captured earlier would not force drafts
        config = EngineConfig(max_batch=BATCH, graphs="none", reuse=False)
    with LLM(model, device=device, engine=EngineConfig(max_batch=BATCH)) as plain:
        sets = prompt_sets(prompts, plain)
        reference = {s.name: s.answer(plain, temperature) for s in sets}
        where = str(plain.runtime.device)
    lengths: dict[tuple[str, int, str], float] = {}
    differing = total = 0
    kinds = [(variant, k) for variant in variants for k in range(1, max_k + 1)]
    so_far = Rows(report_name(temperature, simulate))
    for variant, k in track(kinds, description="acceptance", transient=True):
        with (
            so_far.trying(drafter=variant.name, drafts=k),
            LLM(model, device=device, engine=config, speculation=variant.speculation(k)) as llm,
        ):
            if simulate is not None:
                simulate_acceptance(llm.engine, simulate)
            for prompt_set in sets:
                outputs = prompt_set.answer(llm, temperature)
                length = lengths[prompt_set.name, k, variant.name] = acceptance_length(outputs)
                so_far.append(
                    {"prompts": prompt_set.name, "drafter": variant.name, "drafts": k, "length": length}
                )
                differing += count_differing(outputs, reference[prompt_set.name])
                total += len(outputs)
    summary: dict[str, Any] = {
        "device": where,
        "prompts_per_set": prompts,
        "temperature": temperature,
    }
    if simulate is None:
        summary |= {"answers": total, "answers_that_differ": differing}
    else:
        summary["simulated"] = f"acceptance lengths are simulated: {simulate} tokens per iteration forced"
    rows = table(sets, lengths, max_k, [variant.name for variant in variants])
    return Report(report_name(temperature, simulate), rows, summary, so_far.failures)


def report_name(temperature: float, simulate: float | None) -> str:
    """Return the name of the report and its files. Each kind of run has another name."""
    name = "acceptance" if simulate is None else "acceptance-simulated"
    return name if temperature == 0 else f"{name}-temperature-{temperature:g}"


def table(
    sets: Sequence[PromptSet], lengths: dict[tuple[str, int, str], float], max_k: int, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows by set and drafter, with a column for each number of drafts. A value is 1 without drafts, and None
    for a failure."""
    rows: list[dict[str, Any]] = []
    for prompt_set in sets:
        for name in (*names, NONE):
            values = [
                lengths.get((prompt_set.name, k, name), 1.0 if name == NONE else None)
                for k in range(1, max_k + 1)
            ]
            columns = {
                column(k): round(value, 3) if value is not None else None for k, value in enumerate(values, 1)
            }
            rows.append({"prompts": prompt_set.name, "drafter": name, **columns})
    return rows


def column(k: int) -> str:
    """Return the column's key for a number of drafts."""
    return f"K={k}"


def plot(report: Report, path: Path) -> None:
    """Plot acceptance length against the number of drafts, with a panel for each set of prompts. Needs matplotlib."""
    from weft_bench.figures import lines

    ks = range(1, len(report.rows[0]) - 1)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in report.rows:
        panels.setdefault(row["prompts"], {})[row["drafter"]] = [
            (k, row[column(k)]) for k in ks if row[column(k)] is not None
        ]
    simulated = "simulated " if "simulated" in report.summary else ""
    title = f"{simulated}acceptance length, JSON schema, temperature {report.summary['temperature']:g}"
    lines(panels, path, title=title, x="drafts per iteration (K)", y=f"{simulated}tokens per iteration")
