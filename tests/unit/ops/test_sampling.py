"""Coupled sampling by slot on the CPU: its noise, its distribution, and what it does not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.kernels.random_slots import DTYPES
from support.kernels.rows import check_rows, draft_rows, rows_params, sample_rows
from support.kernels.sampling import (
    gumbel_noise_reference,
    noise_words_reference,
    philox_words_reference,
    sample_reference,
)
from weft.ops.slots import SlotParams, sample_slots_

INF, NAN = float("inf"), float("nan")


def rows(n: int, vocab: int, seed: int = 0, spread: float = 3.0) -> tuple[Tensor, SlotParams, Tensor]:
    """Logits, slots with temperatures (some 0) and seeds, and positions."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator) * spread
    temperature = torch.rand(n, generator=generator) * 2
    temperature[::4] = 0
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    position = torch.randint(0, 2**40, (n,), generator=generator)
    return logits, rows_params(n, vocab, temperature=temperature, seed=seeds), position


def draw(logits: Tensor, temperature: float) -> list[int]:
    """Tokens of [n, vocab] logits, all rows with one temperature, seed and position."""
    params = rows_params(len(logits), max(1, logits.shape[1]), temperature=temperature)
    return sample_rows(logits, params, torch.ones(len(logits), dtype=torch.int64)).tolist()


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], words: list[int]) -> None:
    assert philox_words_reference(torch.tensor(counter), torch.tensor(key)).tolist() == words


def test_the_references_noise_is_a_gumbel_variate_of_the_word() -> None:
    """That of the kernels is held against the same value in `cpp/kernels/test_draw_rules.cpp`."""
    words = torch.randint(0, 2**32, (200_000,), generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1])
    words = torch.cat([edges, words, torch.arange(1000), 2**32 - 1 - torch.arange(1000)])
    # u near 1 in double precision loses what the kernel keeps: the exact value is that of 1 - u.
    below_one = (2**32 - 1 - words).double() + 0.5
    exact = -torch.log(-torch.log1p(-below_one * 2.0**-32)).float()
    assert (gumbel_noise_reference(words) - exact).abs().max() < 1e-5


def test_the_noise_between_two_tokens_is_the_references() -> None:
    """What the second needs more than the first to win, found by halving."""
    n = 500
    seed, position = torch.arange(n) * 7**20, torch.arange(n) * 3**25
    params = rows_params(n, 2, temperature=1.0, seed=seed)
    noise = gumbel_noise_reference(noise_words_reference(seed, position, torch.arange(2)))
    low, high = torch.full((n,), -32.0), torch.full((n,), 32.0)
    for _ in range(30):
        middle = (low + high) / 2
        wins = sample_rows(torch.stack((torch.zeros(n), middle), 1), params, position) == 1
        low, high = low.where(wins, middle), middle.where(wins, high)
    assert (high - (noise[:, 0] - noise[:, 1])).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 3, 4, 31, 63, 64, 65, 2048, 20001])
def test_agrees_with_the_reference(vocab: int, dtype: torch.dtype) -> None:
    logits, params, position = rows(16, vocab)
    logits = logits.to(dtype)
    tokens = sample_rows(logits, params, position)
    assert tokens.dtype == torch.int64
    check_rows(tokens, logits, params, position)
    assert torch.equal(draft_rows(logits, params, position), tokens)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300), st.floats(0, 30), st.floats(0, 1))
def test_agrees_with_the_reference_on_any_logits(
    seed: int, vocab: int, spread: float, blocked: float
) -> None:
    logits, params, position = rows(4, vocab, seed, spread)
    logits[torch.rand(4, vocab, generator=torch.Generator().manual_seed(seed)) < blocked] = -INF
    check_rows(sample_rows(logits, params, position), logits, params, position)


def test_a_flat_row_is_decided_by_noise_alone() -> None:
    logits, params, position = rows(8, 20_000)
    logits.zero_()
    params.temperature[:] = 1
    tokens = sample_rows(logits, params, position)
    assert len(set(tokens.tolist())) == 8
    check_rows(tokens, logits, params, position)


def test_half_precision_logits_are_widened_exactly() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    one, base = torch.zeros(1, dtype=torch.int64), torch.tensor([5])
    for dtype in (torch.float16, torch.bfloat16):
        values = every.view(dtype)[every.view(dtype).isfinite()]
        pairs = torch.stack([values[:-1], values[1:]], 1)
        expected = torch.where(pairs[:, 1] > pairs[:, 0], 1, 0)
        tokens = sample_slots_(pairs, one, base, one.new_zeros(1, len(pairs)), rows_params(1, 2))
        assert torch.equal(tokens, expected)
        narrow = values[None].expand(2, -1).contiguous()
        params = rows_params(2, len(values), temperature=1e4, seed=torch.tensor([1, 2]))
        position = torch.tensor([5, 6])
        assert torch.equal(
            sample_rows(narrow, params, position), sample_rows(narrow.float(), params, position)
        )


@pytest.mark.parametrize("temperature", [0.0, -1.0, 9e-6, NAN])
def test_no_temperature_is_greedy_and_ties_go_to_the_lowest(temperature: float) -> None:
    logits = torch.zeros(3, 200)
    logits[0, [70, 71, 190]] = 1.0
    logits[1, 0] = -0.0
    logits[2, 199] = 1e-30
    assert draw(logits, temperature) == [70, 0, 199]


def test_rows_without_a_token_give_minus_one() -> None:
    logits = torch.full((4, 100), -INF)
    logits[1, 7] = NAN
    logits[2, 99] = -3e38
    logits[3] = NAN
    for temperature in (0.0, 1.0):
        assert draw(logits, temperature) == [-1, -1, 99, -1]
        params = rows_params(4, 100, temperature=temperature)
        assert draft_rows(logits, params, torch.full((4,), 2)).tolist() == [-1, -1, 99, -1]
    assert sample_reference(logits, torch.ones(4), *[torch.zeros(4, dtype=torch.int64)] * 2).tolist() == [
        -1, -1, 99, -1,
    ]  # fmt: skip
    assert draw(torch.zeros(2, 0), 1.0) == [-1, -1]


def test_nan_never_wins_and_infinity_does() -> None:
    logits = torch.full((2, 100), NAN)
    logits[0, 64] = -5.0
    logits[1, [3, 80]] = INF
    assert draw(logits, 0.0) == [64, 3]
    assert draw(logits, 0.7) == [64, 3]


def test_a_temperature_that_is_wanted_goes_before_the_slots_own() -> None:
    """Each position has its own; drafts take that of the first."""
    logits, params, position = rows(16, 300)
    wanted = torch.rand(17, 3)
    wanted[::3], wanted[1::3, 1] = -1, 0
    slot, expected = torch.arange(16), params.temperature.clone()
    tokens = sample_slots_(
        logits.repeat_interleave(3, 0), slot, position - 1, slot.new_zeros(16, 3), params, wanted
    ).view(16, 3)
    for t in range(3):
        params.temperature[:] = wanted[:, t].where(wanted[:, t] >= 0, expected)
        assert torch.equal(sample_rows(logits, params, position + t), tokens[:, t])


def chi_square(tokens: Tensor, probability: Tensor) -> float:
    """The statistic, in standard deviations above what its distribution has for a mean."""
    expected = probability.double() * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probability)).double()
    freedom = len(probability) - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


SMALL = torch.tensor([1.0, 0.5, -0.3, 2.0, 0.0, 1.4, -1.0, 0.2, 1.9])
DRAWS = 200_000


def small_draws(varied: str, temperature: float) -> Tensor:
    """200,000 draws from SMALL: slots with a seed each, positions of one slot, or both."""
    slots, times = {"seeds": (DRAWS, 1), "positions": (1, DRAWS), "both": (DRAWS // 500, 500)}[varied]
    seed = torch.arange(slots) * (2**33 if varied == "both" else 1) + 17
    params = rows_params(slots, 9, temperature=temperature, seed=seed)
    position = torch.full((slots,), 12345 if varied == "seeds" else 0)
    return sample_rows(SMALL.expand(slots, -1), params, position, times)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("varied", ["seeds", "positions", "both"])
def test_tokens_are_distributed_as_softmax(varied: str, temperature: float) -> None:
    probability = (SMALL / temperature).softmax(0)
    assert chi_square(small_draws(varied, temperature), probability) < 5


@pytest.fixture(scope="module")
def words() -> Tensor:
    return noise_words_reference(torch.arange(DRAWS), torch.zeros(DRAWS, dtype=torch.int64), torch.arange(9))


@pytest.mark.parametrize("wrong", ["uniform", "exponential", "logistic", "one word for four"])
def test_the_distribution_test_would_notice_another_noise(wrong: str, words: Tensor) -> None:
    u = (words.double() + 0.5) / 2**32
    noise = {
        "uniform": u,
        "exponential": -u.log(),
        "logistic": u.log() - (-u).log1p(),
        "one word for four": gumbel_noise_reference(words)[:, torch.arange(9) // 4 * 4],
    }[wrong]
    assert chi_square((SMALL + noise).argmax(1), SMALL.softmax(0)) > 50
    assert chi_square((SMALL + gumbel_noise_reference(words)).argmax(1), SMALL.softmax(0)) < 5


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    for varied in ("positions", "seeds"):
        tokens = small_draws(varied, 1.0)
        pairs = tokens[:-1] * 9 + tokens[1:]
        probability = SMALL.softmax(0)
        assert chi_square(pairs[::2], torch.outer(probability, probability).flatten()) < 5


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch_nor_on_where_it_lies(threads: int) -> None:
    logits, params, position = rows(40, 6001)
    slot, inputs = torch.arange(40), torch.zeros(40, 1, dtype=torch.int64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = sample_rows(logits, params, position)
    finally:
        torch.set_num_threads(before)
    alone = [
        int(
            sample_slots_(
                logits[i : i + 1], slot[i : i + 1], position[i : i + 1] - 1, inputs[i : i + 1], params
            )
        )
        for i in range(40)
    ]
    assert together.tolist() == alone
    order = torch.randperm(40)
    shuffled = sample_slots_(logits[order], slot[order], position[order] - 1, inputs, params)
    assert torch.equal(shuffled, together[order])
    misaligned = torch.zeros(40, 6007)[:, 3:6004]
    misaligned.copy_(logits)
    assert torch.equal(sample_rows(misaligned, params, position), together)


def test_every_bit_of_seed_and_position_counts() -> None:
    """But the last one of the position, which is no length of a text."""
    fixed = torch.zeros(64, dtype=torch.int64)
    bits = 1 << torch.arange(64)
    for seed, position in ((bits, fixed), (fixed, bits.clamp(min=0))):
        params = rows_params(64, 100_000, temperature=1.0, seed=seed)
        assert len(set(sample_rows(torch.zeros(64, 100_000), params, position).tolist())) > 60


def test_a_drafter_with_the_same_logits_picks_the_same_token() -> None:
    logits, params, position = rows(64, 4000)
    targets = torch.randperm(4000, generator=torch.Generator().manual_seed(3))[:1000]
    d2t = targets - torch.arange(1000)
    in_draft = torch.zeros(4000, dtype=torch.bool)
    in_draft[targets] = True
    expected = sample_rows(logits.masked_fill(~in_draft, -INF), params, position)
    drafts = logits[:, targets]
    assert torch.equal(draft_rows(drafts, params, position, d2t), expected)
    check_rows(expected, drafts, params, position, d2t)


def test_ties_among_drafts_go_to_the_lowest_target_token() -> None:
    d2t = torch.tensor([90, 50, 10]) - torch.arange(3)
    for temperature in (0.0, 1.0):
        params = rows_params(1, 100, temperature=temperature)
        logits = torch.full((1, 3), INF)
        assert draft_rows(logits, params, torch.tensor([2]), d2t).item() == 10
