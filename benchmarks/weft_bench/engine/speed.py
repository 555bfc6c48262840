"""Measures tokens per second at batch 1 under a JSON schema: every drafter in one graph and in split graphs,
compared with no drafts.

The guides have two forms. One leaves whitespace to the model. The other has fixed separators, so that the grammar
forces keys and punctuation. First each drafter answers all prompts once with every number of drafts, in one graph.
Then it answers every prompt in every round with its best number. All engines alternate prompt by prompt, so that
drift cancels. Times are from the call to the answer, prefill included. Guides are compiled before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import Progress

from weft.config import EngineConfig, Graphs, Speculation
from weft.core import SamplingParams
from weft.llm import LLM
from weft_bench.engine.drafters import DRAFTERS, EAGLE3, Variant
from weft_bench.heldout import PromptSet, prompt_set
from weft_bench.report import Report
from weft_bench.rows import Rows

NUM_DRAFTS = (2, 3, 4, 5, 6, 8)
FORMS: dict[str, tuple[str, str] | None] = {"free blanks": None, "separators": (", ", ": ")}
UNGUIDED_AND_AUTO = (
    Variant("EAGLE3, guide_drafts=False", Speculation.eagle3, guide_drafts=False),
    Variant('EAGLE3, guide_drafts="auto"', Speculation.eagle3, guide_drafts="auto"),
)
SAMPLING = SamplingParams(max_tokens=192)


@dataclass
class Racer:
    """An LLM with a name, and the results of its rounds: tokens, seconds, and seconds after the first tokens."""

    name: str
    num_drafts: int
    graphs: Graphs
    llm: LLM
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    decode_seconds: list[float] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)

    def start_round(self) -> None:
        """Start a new round. The following answers belong to it."""
        self.tokens.append(0)
        self.seconds.append(0.0)
        self.decode_seconds.append(0.0)

    def answer(self, prompts: PromptSet, i: int) -> None:
        """Answer prompt `i`."""
        begin = time.perf_counter()
        output = self.llm.generate(prompts.prompts[i], guide=prompts.guides[i], sampling=SAMPLING)
        seconds = time.perf_counter() - begin
        self.answers[i] = output.token_ids
        self.tokens[-1] += len(output.token_ids)
        self.seconds[-1] += seconds
        self.decode_seconds[-1] += seconds - output.stats.time_to_first_token_s

    @property
    def speeds(self) -> list[float]:
        """The tokens per second of each round."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True)]

    @property
    def decode_speeds(self) -> list[float]:
        """The tokens per second of each round, without prefill."""
        return [tokens / seconds for tokens, seconds in zip(self.tokens, self.decode_seconds, strict=True)]


def run(
    device: str = "auto",
    model: Path | None = None,
    prompts: int = 48,
    rounds: int = 3,
    num_drafts: Sequence[int] = NUM_DRAFTS,
    variants: Sequence[Variant] = DRAFTERS,
) -> Report:
    """Return a row for each drafter and form of guide, with the ratio of its speed to decoding without drafts, and
    to itself in split graphs."""
    rows = Rows("speed")
    totals: dict[str, Any] = {}
    with Progress(transient=True) as progress:
        num_llms = len(variants) * (len(num_drafts) + 1) + 2 + len(UNGUIDED_AND_AUTO) * (EAGLE3 in variants)
        task = progress.add_task("speed", total=len(FORMS) * num_llms)

        def racer(name: str, speculation: Speculation, graphs: Graphs) -> Racer:
            config = EngineConfig(max_batch=1, graphs=graphs)
            llm = LLM(model, device=device, speculation=speculation, engine=config)
            progress.advance(task)
            return Racer(name, speculation.max_draft_tokens, graphs, llm)

        for form, separators in FORMS.items():
            with rows.trying(guide=form), ExitStack() as open_llms:
                racers, where = race_all(racer, open_llms, separators, prompts, rounds, num_drafts, variants)
                of_form = [{"guide": form, **row} for row in table(racers)]
                rows += of_form
                totals[form] = summary(of_form, racers)
                totals["device"] = where
    return rows.report(totals | {"prompts": prompts, "rounds": rounds})


def race_all(
    racer: Callable[[str, Speculation, Graphs], Racer],
    open_llms: ExitStack,
    separators: tuple[str, str] | None,
    count: int,
    rounds: int,
    num_drafts: Sequence[int],
    variants: Sequence[Variant],
) -> tuple[list[Racer], str]:
    """Return all racers for one form of guide, each with its best number of drafts, and the device."""

    def opened(name: str, speculation: Speculation, graphs: Graphs = "one") -> Racer:
        made = racer(name, speculation, graphs)
        open_llms.enter_context(made.llm)
        return made

    plain = opened("none", Speculation.none())
    chosen = prompt_set("extraction", count, plain.llm, separators)
    racers = [plain, opened("none", Speculation.none(), "split")]
    for variant in variants:
        tried = [opened(variant.name, variant.speculation(k)) for k in num_drafts]
        race(tried, chosen, 1)
        best = max(tried, key=lambda r: r.speeds[0])
        for loser in tried:
            if loser is not best:
                loser.llm.close()
        racers.append(Racer(best.name, best.num_drafts, best.graphs, best.llm))
        racers.append(opened(variant.name, variant.speculation(best.num_drafts), "split"))
        if variant is EAGLE3:
            for way in UNGUIDED_AND_AUTO:
                racers.append(opened(way.name, way.speculation(best.num_drafts)))
    race(racers, chosen, rounds)
    return racers, str(plain.llm.runtime.device)


def race(racers: Sequence[Racer], prompts: PromptSet, rounds: int) -> None:
    """Let every racer answer every prompt in every round, after a prompt for warm-up."""
    for racer in racers:
        racer.llm.generate(prompts.prompts[0], guide=prompts.guides[0], sampling=SAMPLING)
    for _ in range(rounds):
        for racer in racers:
            racer.start_round()
        for i in range(len(prompts.prompts)):
            for racer in racers:
                racer.answer(prompts, i)


def table(racers: Sequence[Racer]) -> list[dict[str, Any]]:
    """Return a row for each racer in one graph. Ratios are medians over rounds, computed within each round."""
    one = {r.name: r for r in racers if r.graphs == "one"}
    split = {r.name: r for r in racers if r.graphs == "split"}
    plain = one["none"]
    return [
        {
            "drafter": name,
            "K": racer.num_drafts,
            "tokens_per_s": round(median(racer.speeds)),
            "decode_tokens_per_s": round(median(racer.decode_speeds)),
            "over_none": median_ratio(racer.speeds, plain.speeds),
            "decode_over_none": median_ratio(racer.decode_speeds, plain.decode_speeds),
            "one_graph_over_split": median_ratio(racer.speeds, split[name].speeds) if name in split else "",
        }
        for name, racer in one.items()
    ]


def median_ratio(speeds: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two speeds."""
    return round(median(a / b for a, b in zip(speeds, base, strict=True)), 3)


def summary(rows: Sequence[dict[str, Any]], racers: Sequence[Racer]) -> dict[str, Any]:
    """Return the best drafter, the smallest gain from one graph, and the number of answers that differ from decoding
    without drafts."""
    reference = next(r for r in racers if r.name == "none").answers
    best = max(rows, key=lambda row: row["over_none"])
    return {
        "best": f"{best['drafter']}, {best['over_none']} times none",
        "least_one_graph_over_split": min(
            r["one_graph_over_split"] for r in rows if r["one_graph_over_split"]
        ),
        "answers_that_differ": sum(
            tokens != reference[i] for racer in racers for i, tokens in racer.answers.items()
        ),
    }
