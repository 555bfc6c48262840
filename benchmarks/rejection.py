"""Compares coupled sampling with rejection sampling by the drafts that each accepts, for the same drafts and models.

    .venv/bin/python benchmarks/rejection.py --help

Coupled sampling accepts a draft if it is the token that the target samples with the same noise. Rejection sampling
(Leviathan et al., 2023) accepts draft d with probability min(1, p(d) / q(d)), where p is the target's and q the
drafter's distribution, and stops at the first rejection. Coupled drafts are samples of q, and the start of an
iteration depends on earlier noise only. The mean over iterations of sum_j prod_{i <= j} min(1, p_i(d_i) / q_i(d_i))
is therefore an unbiased estimate of the number of drafts that rejection sampling accepts from the same starts.

p and q are softmaxes under the grammar's mask at temperature 1. A draft that the host proposed has q = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from probe import Kept, WatchedSteps
from weft.config import EngineConfig
from weft.core import Output
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.llm import LLM
from weft_bench.cli.app import DeviceOption, ModelOption, OutOption, PromptsOption, finish, measured, script
from weft_bench.engine.drafters import DRAFTERS, Variant
from weft_bench.heldout import PromptSet, prompt_sets
from weft_bench.report import Report
from weft_bench.rows import Rows

BATCH = 16


@dataclass
class Tally:
    """Counts of accepted drafts: the actual count of coupled sampling, and the expectation of rejection sampling."""

    end_ids: tuple[int, ...] = ()
    iterations: int = 0
    coupled: float = 0.0
    rejection: float = 0.0
    squared_difference: float = 0.0

    def add(self, kept: Kept) -> None:
        """Add the rows of an iteration."""
        counts = torch.arange(1, kept.drafts_BK.shape[1] + 1) <= kept.count_B[:, None]
        counted_BK = before_end(kept.drafts_BK, self.end_ids)
        coupled_B = (counts & counted_BK).sum(1).double()
        ratio_BK = acceptance_probability(kept.target_BK, kept.draft_BK)
        rejection_B = (ratio_BK.cumprod(1) * counted_BK).sum(1)
        self.iterations += len(coupled_B)
        self.coupled += float(coupled_B.sum())
        self.rejection += float(rejection_B.sum())
        self.squared_difference += float((coupled_B - rejection_B).square().sum())

    @property
    def standard_error(self) -> float:
        """The standard error of the difference of the means."""
        if not self.iterations:
            return math.nan
        mean = (self.coupled - self.rejection) / self.iterations
        return math.sqrt(max(0.0, self.squared_difference / self.iterations - mean**2) / self.iterations)


def acceptance_probability(target: Tensor, draft: Tensor) -> Tensor:
    """Return min(1, p / q) of drafts in float64. `target` is p of each draft, `draft` is q. 0 if there is no draft
    (q is 0), or if the target has no distribution (NaN)."""
    p, q = target.double().nan_to_num(0.0), draft.double().nan_to_num(0.0)
    return torch.where(q > 0, p / q.clamp(min=torch.finfo(torch.float64).tiny), 0.0).clamp(max=1.0)


def before_end(drafts_BK: Tensor, end_ids: Sequence[int]) -> Tensor:
    """Return [B, K] bool: whether no earlier draft of the row ends the text. Drafts after an end are not part of any
    answer."""
    ends_BK = torch.isin(drafts_BK, torch.tensor(end_ids, dtype=drafts_BK.dtype))
    return (ends_BK.cumsum(1) - ends_BK.long()) == 0


def run(
    device: str = "auto",
    model: Path | None = None,
    prompts: int = 64,
    drafts: Sequence[int] = (3, 5),
    variants: Sequence[Variant] = DRAFTERS,
) -> Report:
    """Return a row for each set of prompts, drafter and number of drafts, at temperature 1 with guided drafts."""
    config = EngineConfig(max_batch=BATCH, graphs="none")
    rows = Rows("rejection")
    with LLM(model, device=device, engine=config) as plain:
        sets, where = prompt_sets(prompts, plain), str(plain.runtime.device)
        end_ids = Vocabulary.from_huggingface(plain.tokenizer, model_path=plain.model_path).end_ids
    kinds = [(variant, k) for variant in variants for k in drafts]
    for variant, k in track(kinds, description="rejection", transient=True):
        with (
            rows.trying(drafter=variant.name, drafts=k),
            LLM(model, device=device, engine=config, speculation=variant.speculation(k)) as llm,
        ):
            llm.engine.runner.graphs = steps = WatchedSteps(llm.engine.graphs)
            for prompt_set in sets:
                tally, outputs = watch(llm, steps, prompt_set, end_ids)
                rows.append(row(prompt_set.name, variant.name, k, tally, outputs))
    rows.sort(key=lambda r: [s.name for s in sets].index(r["prompts"]))
    return rows.report({"device": where, "prompts_per_set": prompts, "temperature": 1})


def watch(
    llm: LLM, steps: WatchedSteps, prompts: PromptSet, end_ids: tuple[int, ...]
) -> tuple[Tally, list[Output]]:
    """Answer the prompts at temperature 1 with an LLM whose engine runs `steps`. Returns the counts and the outputs."""
    tally = Tally(end_ids)
    steps.watch = tally.add
    return tally, prompts.answer(llm, temperature=1.0)


def row(prompts: str, drafter: str, k: int, tally: Tally, outputs: list[Output]) -> dict[str, Any]:
    """Return a row of the report: tokens per iteration, including the token after the drafts."""
    iterations = sum(output.stats.iterations for output in outputs)
    coupled, rejection = (1 + sums / max(1, iterations) for sums in (tally.coupled, tally.rejection))
    return {
        "prompts": prompts,
        "drafter": drafter,
        "K": k,
        "coupled": round(coupled, 3),
        "rejection": round(rejection, 3),
        "difference": round(coupled - rejection, 3),
        "standard_error": round(tally.standard_error, 3),
        "iterations": iterations,
    }


def main(
    model: ModelOption = None,
    prompts: PromptsOption = 64,
    device: DeviceOption = "auto",
    out: OutOption = None,
) -> None:
    """Coupled sampling compared with rejection sampling at temperature 1, by the drafts that each accepts."""
    report = measured(out, lambda: run(device, model, prompts))
    finish(report, out)


if __name__ == "__main__":
    script(main)
