"""Whole outputs have exactly the distribution that the model gives them, whatever the parameters, guide and drafter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from support.engine.checkpoints import save_eagle3
from support.engine.random_model import random_model
from support.statistics.chi_square import CHANCE, least_p_value
from support.statistics.exact_outputs import distribution
from support.statistics.many_requests import ManyRequests
from support.statistics.small_world import CONFIG, PAGE_SIZE, VOCAB, Case, case, good_draft_model, target
from weft.guided.proposals import NgramSettings, Sources
from weft.models.base import PagedKV
from weft.models.eagle3_head import Eagle3Head
from weft.spec.base import Drafter
from weft.spec.draft_model import DraftModel
from weft.spec.eagle3 import Eagle3


def poor_draft_model(num_pages: int) -> Drafter:
    """Other weights, and no last token: its vocabulary is shorter."""
    model = random_model(replace(CONFIG, vocab_size=VOCAB - 1), seed=6)
    return DraftModel(model, PagedKV.for_model(model, num_pages, PAGE_SIZE), VOCAB)


def random_eagle3(path: Path, num_pages: int) -> Drafter:
    """A head of random weights saved at `path`, which can say five of the eight tokens."""
    save_eagle3(path, VOCAB, CONFIG.hidden_size, CONFIG.num_layers, draft_vocab=5)
    head = Eagle3Head.load(path, target())
    return Eagle3(head, head.allocate_kv(num_pages, PAGE_SIZE))


pytestmark = pytest.mark.slow

SAMPLES = 100_000
PER_CASE = 400

PLAIN = {
    f"{name}{' guided' if guided else ''}": case(guided, temperature=temperature)
    for guided in (False, True)
    for name, temperature in (("cold", 0.5), ("warm", 1.0), ("hot", 1.7))
}
PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.4,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
}
EVERYTHING: dict[str, Any] = {
    "temperature": 1.4,
    "top_k": 6,
    "top_p": 0.93,
    "min_p": 0.06,
    "logit_bias": {1: 0.4, 5: -0.6},
    "min_tokens": 2,
    "stop_token_ids": [7],
    **PENALTIES,
}
SHAPED = {
    "top-k": case(top_k=3),
    "top-p guided": case(True, top_p=0.75),
    "min-p": case(temperature=1.7, min_p=0.22),
    "penalties": case(**PENALTIES),
    "rewards guided": case(True, repetition_penalty=0.7, presence_penalty=-0.4, frequency_penalty=-0.2),
    "bias and bad words": case(
        bad_words=((2,), (1, 3), (6, 6), (2, 4, 6, 1)), logit_bias={3: 1.0, 4: -0.7, 6: -math.inf}
    ),
    "bad words guided": case(True, bad_words=((5,), (1, 2), (1, 1))),
    "late end": case(min_tokens=2, stop_token_ids=[4]),
    "late end guided": case(True, min_tokens=3),
    "everything": case(bad_words=((4, 1),), **EVERYTHING),
    "everything guided": case(True, bad_words=((4, 1),), **EVERYTHING),
}


def some(cases: dict[str, Case], *names: str) -> dict[str, Case]:
    return {name: cases[name] for name in names}


@dataclass(frozen=True)
class Run:
    """A batch of cases with a drafter; the share of its drafts that is accepted lies in `accepts`."""

    cases: dict[str, Case]
    num_drafts: int = 0
    make: Callable[[Path], Callable[[int], Drafter]] | None = None
    accepts: tuple[float, float] = (0.0, 0.0)
    options: dict[str, Any] = field(default_factory=dict)


def good(_: Path) -> Callable[[int], Drafter]:
    return good_draft_model


def poor(_: Path) -> Callable[[int], Drafter]:
    return poor_draft_model


def eagle3(path: Path) -> Callable[[int], Drafter]:
    return lambda num_pages: random_eagle3(path / "head", num_pages)


NGRAMS = Sources(ngram=NgramSettings(min_length=1, max_length=3))
RUNS = {
    "no drafter": Run(PLAIN),
    "no drafter, shaped": Run(SHAPED),
    "good drafts, K=1": Run(some(SHAPED, "penalties", "bad words guided"), 1, good, (0.6, 1.0)),
    "good drafts, K=3": Run(some(PLAIN, "cold", "hot", "warm guided"), 3, good, (0.6, 1.0)),
    "good drafts, K=3, shaped": Run(
        some(SHAPED, "bias and bad words", "everything guided"), 3, good, (0.4, 1.0)
    ),
    "poor drafts, K=3, eager": Run(some(PLAIN, "warm"), 3, poor, (0.05, 0.5), {"graphs": "none"}),
    "random EAGLE3, K=1": Run(
        some(PLAIN, "warm", "hot guided"), 1, eagle3, (0.02, 0.5), {"guided_drafts": False}
    ),
    "random EAGLE3, K=3, shaped": Run(some(SHAPED, "penalties", "late end guided"), 3, eagle3, (0.02, 0.5)),
    "good drafts, K=3, split": Run(some(PLAIN, "cold guided"), 3, good, (0.4, 1.0), {"graphs": "split"}),
    "n-grams, K=3": Run(some(PLAIN, "warm guided"), 3, None, (0.01, 0.5), {"sources": NGRAMS}),
}


@pytest.mark.parametrize("name", RUNS)
def test_outputs_have_the_exact_distribution(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    exact = [distribution(case) for case in run.cases.values()]
    make = run.make(tmp_path) if run.make is not None else None
    many = ManyRequests(list(run.cases.values()), PER_CASE, make, run.num_drafts, **run.options)
    samples = many.sample(SAMPLES, first_seed=list(RUNS).index(name) << 20)
    many.close()
    found = {what: least_p_value(samples.counts(i), exact[i]) for i, what in enumerate(run.cases)}
    assert min(found.values()) > CHANCE, found
    assert run.accepts[0] <= samples.accepted <= run.accepts[1]
