"""Outputs of different seeds know nothing of each other, and greedy decoding is the limit of low temperatures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.statistics.chi_square import CHANCE, SMALLEST, p_value, survival
from support.statistics.exact_outputs import codes, distribution
from support.statistics.many_requests import ManyRequests, seeds_of
from support.statistics.small_world import MAX_TOKENS, VOCAB, case, good_draft_model


def independence_p_value(pairs: Tensor) -> float:
    """Of counts [n, m] of two things that happen together: how likely they are if neither knows of the other."""
    pairs = pairs[pairs.sum(1) > 0][:, pairs.sum(0) > 0].double()
    expected = pairs.sum(1)[:, None] * pairs.sum(0)[None] / pairs.sum()
    assert float(expected.min()) >= SMALLEST, "too few samples, or things too rare, for a test of pairs"
    statistic = ((pairs - expected) ** 2 / expected).sum()
    return survival(float(statistic), (pairs.shape[0] - 1) * (pairs.shape[1] - 1))


pytestmark = pytest.mark.slow

PER_CASE, TURNS = 500, 200


@pytest.fixture(scope="module")
def outputs() -> Tensor:
    """[2, n, MAX_TOKENS]: of neighbouring seeds along n; the two differ in the seeds' high words alone."""
    many = ManyRequests([case(temperature=1.5)] * 2, PER_CASE, good_draft_model, 3)
    samples = many.sample(PER_CASE * TURNS, first_seed=12345)
    many.close()
    return samples.outputs


PAIRS = {
    "neighbouring seeds": lambda x: (x[0, 0::2], x[0, 1::2]),
    "seeds four apart": lambda x: (x[0].view(-1, 8, MAX_TOKENS)[:, :4], x[0].view(-1, 8, MAX_TOKENS)[:, 4:]),
    "neighbouring slots": lambda x: (
        x[0].view(-1, 2, TURNS, MAX_TOKENS)[:, 0],
        x[0].view(-1, 2, TURNS, MAX_TOKENS)[:, 1],
    ),
    "high words": lambda x: (x[0], x[1]),
}


@pytest.mark.parametrize("positions", [(0, 0), (0, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("pair", PAIRS)
def test_outputs_of_two_seeds_are_independent(outputs: Tensor, pair: str, positions: tuple[int, int]) -> None:
    one, other = (x.reshape(-1, MAX_TOKENS) for x in PAIRS[pair](outputs))
    both = one[:, positions[0]] * VOCAB + other[:, positions[1]]
    assert independence_p_value(both.bincount(minlength=VOCAB**2).view(VOCAB, VOCAB)) > CHANCE


def test_tokens_of_one_output_are_not_independent(outputs: Tensor) -> None:
    """The test of pairs finds what there is to find: the model reads its own tokens."""
    both = outputs[0, :, 0] * VOCAB + outputs[0, :, 1]
    assert independence_p_value(both.bincount(minlength=VOCAB**2).view(VOCAB, VOCAB)) < 1e-12


def test_every_seed_is_used_once() -> None:
    seeds = seeds_of(3, 100_000, 7 << 20)
    assert seeds.unique().numel() == seeds.numel()


@pytest.mark.parametrize("guided", [False, True])
def test_greedy_is_the_limit_of_low_temperatures(guided: bool) -> None:
    """0, what counts as 0, and temperatures so low that no other output is likely."""
    exact = distribution(case(guided, temperature=1e-3)).flatten()
    best = int(exact.argmax())
    assert float(exact[best]) > 1 - 1e-9
    cases = [case(guided, temperature=temperature) for temperature in (0.0, 1e-9, 1e-4, 1e-3)]
    for make, num_drafts in ((None, 0), (good_draft_model, 3)):
        many = ManyRequests(cases, 100, make, num_drafts)
        samples = many.sample(200)
        many.close()
        assert bool((codes(samples.outputs.view(-1, MAX_TOKENS)) == best).all())


@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [(3.841, 1, 0.05), (18.307, 10, 0.05), (124.342, 100, 0.05), (29.588, 10, 0.001), (0.0, 5, 1.0)],
)
def test_chi_square_as_in_tables(statistic: float, degrees: int, expected: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(expected, rel=2e-3)


def test_p_values_of_what_is_right_are_uniform() -> None:
    """With many cells that expect little, as outputs do; and what can't be is never right."""
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.rand(3000, generator=generator, dtype=torch.float64).pow(6)
    probabilities[:100] = 0
    probabilities /= probabilities.sum()
    found = []
    for _ in range(200):
        drawn = torch.multinomial(probabilities, 50_000, replacement=True, generator=generator)
        found.append(p_value(drawn.bincount(minlength=3000), probabilities))
    tenths = (torch.tensor(found) * 10).long().clamp(max=9).bincount(minlength=10)
    assert p_value(tenths, torch.full((10,), 0.1, dtype=torch.float64)) > CHANCE
    counts = drawn.bincount(minlength=3000)
    counts[0] = 1
    assert p_value(counts, probabilities) == 0.0
