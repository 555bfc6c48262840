"""`benchmarks/rejection.py`: its estimate against rejection sampling itself, and small runs over kinds of drafters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rejection
from probe import Kept, WatchedSteps
from rejection import Tally, acceptance_probability, before_end, watch
from weft.config import EngineConfig
from weft.llm import LLM
from weft_bench.engine.drafters import DRAFTERS
from weft_bench.heldout import prompt_set

VOCAB, DRAFTS, RUNS = 4, 3, 40_000


def distributions(seed: int, sharpness: float) -> Tensor:
    """[V, V, V, V]: a distribution of the next token behind each prefix of K - 1 tokens, padded with 0."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(VOCAB, VOCAB, VOCAB, VOCAB, generator=generator) * sharpness).softmax(-1).double()


def behind(of: Tensor, tokens: Tensor) -> Tensor:
    """[n, V]: the distributions behind `tokens` [n, j], j < K."""
    prefix = torch.nn.functional.pad(tokens, (0, DRAFTS - tokens.shape[1]))
    return of[prefix[:, 0], prefix[:, 1], prefix[:, 2]]


def coupled_drafts(q: Tensor, generator: torch.Generator) -> Tensor:
    """[RUNS, K]: drafts picked as the engine picks them, the argmax of log q + Gumbel noise."""
    tokens = torch.zeros(RUNS, 0, dtype=torch.int64)
    for _ in range(DRAFTS):
        noise = -torch.rand(RUNS, VOCAB, generator=generator, dtype=torch.float64).log()
        tokens = torch.cat((tokens, (behind(q, tokens).log() - noise.log()).argmax(1)[:, None]), 1)
    return tokens


def rejection_sampling(p: Tensor, q: Tensor, generator: torch.Generator) -> Tensor:
    """[RUNS]: drafts accepted by the rule of Leviathan et al., each by a throw of its own."""
    tokens = torch.zeros(RUNS, 0, dtype=torch.int64)
    alive, accepted = torch.ones(RUNS, dtype=torch.bool), torch.zeros(RUNS, dtype=torch.int64)
    for _ in range(DRAFTS):
        q_NV, p_NV = behind(q, tokens), behind(p, tokens)
        draft_N1 = q_NV.multinomial(1, generator=generator)
        throw = torch.rand(RUNS, generator=generator, dtype=torch.float64)
        alive &= throw < (p_NV.gather(1, draft_N1) / q_NV.gather(1, draft_N1))[:, 0]
        accepted += alive
        tokens = torch.cat((tokens, draft_N1), 1)
    return accepted


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_estimate_is_the_mean_of_rejection_sampling(sharpness: float) -> None:
    p, q = distributions(1, sharpness), distributions(2, sharpness)
    generator = torch.Generator().manual_seed(3)
    drafts = coupled_drafts(q, generator)
    chosen = [
        torch.cat([behind(of, drafts[:, :j]).gather(1, drafts[:, j : j + 1]) for j in range(DRAFTS)], 1)
        for of in (p, q)
    ]
    tally = Tally()
    tally.add(Kept(drafts, *chosen, count_B=torch.zeros(RUNS, dtype=torch.int64)))
    simulated = rejection_sampling(p, q, generator).double()
    error = float(simulated.std()) * (2 / RUNS) ** 0.5
    assert tally.iterations == RUNS
    assert tally.rejection / RUNS == pytest.approx(float(simulated.mean()), abs=4.5 * error)
    assert 0.3 < float(simulated.mean()) < DRAFTS - 0.1  # the case can fail


def test_certain_drafts_are_accepted_with_the_targets_probability() -> None:
    p = torch.tensor([[0.25, 1.0, 0.0]])
    assert acceptance_probability(p, torch.ones(1, 3)).tolist() == [[0.25, 1.0, 0.0]]


def test_what_is_no_draft_or_has_no_distribution_is_never_accepted() -> None:
    nan = float("nan")
    p, q = torch.tensor([[0.5, 0.5, nan, 0.5]]), torch.tensor([[0.0, nan, 0.5, 0.25]])
    assert acceptance_probability(p, q).tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_drafts_behind_an_end_do_not_count() -> None:
    drafts = torch.tensor([[5, 1, 5], [1, 1, 1], [5, 5, 5], [5, 5, 9]])
    expected = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]
    assert before_end(drafts, [1, 9]).int().tolist() == expected
    kept = Kept(drafts, torch.ones(4, 3), torch.ones(4, 3), torch.tensor([3, 3, 2, 0]))
    tally = Tally((1, 9))
    tally.add(kept)
    assert (tally.coupled, tally.rejection) == (2 + 1 + 2 + 0, 2 + 1 + 3 + 3)


def test_standard_error_is_that_of_paired_differences() -> None:
    tally = Tally()
    probabilities = torch.tensor([[0.5], [0.0], [1.0]])
    tally.add(Kept(torch.zeros(3, 1).long(), probabilities, torch.ones(3, 1), torch.tensor([1, 1, 0])))
    differences = torch.tensor([0.5, 1.0, -1.0]).double()
    assert tally.standard_error == pytest.approx(float(differences.std(correction=0)) / 3**0.5)


@pytest.mark.parametrize("name", ["EAGLE3", "n-gram", "forced + EAGLE3"])
def test_what_was_watched_is_what_the_answers_hold(name: str) -> None:
    variant = next(variant for variant in DRAFTERS if variant.name == name)
    config = EngineConfig(max_batch=2, graphs="none")  # 5 prompts: slots are used again
    with LLM(device="cpu", engine=config, speculation=variant.speculation(3)) as llm:
        llm.engine.runner.graphs = steps = WatchedSteps(llm.engine.graphs)
        prompts = prompt_set("extraction", 5, llm)
        tally, outputs = watch(llm, steps, prompts, (llm.tokenizer.eos_token_id,))
    assert tally.coupled == sum(output.stats.accepted_drafts for output in outputs) > 0
    assert tally.iterations <= sum(output.stats.iterations for output in outputs)
    # The model is all but certain of what it extracts, and then both accept the same.
    assert tally.rejection == pytest.approx(tally.coupled, rel=0.05)


def test_small_run() -> None:
    variants = [variant for variant in DRAFTERS if variant.name in ("MTP", "forced")]
    report = rejection.run("cpu", prompts=2, drafts=(2,), variants=variants)
    assert [(row["prompts"], row["drafter"], row["K"]) for row in report.rows] == [
        (prompts, variant.name, 2) for prompts in ("extraction", "schema only") for variant in variants
    ]
    for row in report.rows:
        assert 1 <= row["coupled"] <= 3 and 1 <= row["rejection"] <= 3 and row["iterations"] > 0
