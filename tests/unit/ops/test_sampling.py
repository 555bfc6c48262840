"""Coupled sampling on the CPU: its noise, its distribution, and what it does not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import InputError
from weft.ops.sampling import (
    gumbel_noise,
    gumbel_noise_reference,
    noise_words_reference,
    philox_words_reference,
    sample,
    sample_reference,
)

INF, NAN = float("inf"), float("nan")


def rows(n: int, vocab: int, seed: int = 0, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, temperatures (some 0), seeds and positions."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator) * spread
    temperature = torch.rand(n, generator=generator) * 2
    temperature[::4] = 0
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    return logits, temperature, seeds, torch.randint(0, 2**40, (n,), generator=generator)


def draw(logits: Tensor, temperature: float, seed: int = 0, position: int = 0) -> list[int]:
    """Tokens of [n, vocab] logits, all rows with one temperature, seed and position."""
    n = len(logits)
    return sample(
        logits, torch.full((n,), temperature), torch.full((n,), seed), torch.full((n,), position)
    ).tolist()


def assert_same_but_for_ties(tokens: Tensor, arguments: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Equal to the reference, except where its two best sums are closer than 1e-5."""
    logits, temperature, seed, position = arguments
    expected = sample_reference(*arguments)
    words = noise_words_reference(seed, position, torch.arange(logits.shape[1]))
    for i in (tokens != expected).nonzero().flatten().tolist():
        sums = logits[i].double() / temperature[i] + gumbel_noise_reference(words[i])
        assert sums[expected[i]] - sums[tokens[i]] < 1e-5


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


def test_noise_is_a_gumbel_variate_of_the_word() -> None:
    words = torch.randint(0, 2**32, (200_000,), generator=torch.Generator().manual_seed(0))
    edges = torch.tensor([0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1])
    words = torch.cat([edges, words, torch.arange(1000), 2**32 - 1 - torch.arange(1000)])
    noise = gumbel_noise(words)
    assert noise.isfinite().all()
    assert -3.14 < noise.min() < noise.max() < 22.9
    # u near 1 in double precision loses what the kernel keeps: the exact value is that of 1 - u.
    below_one = (2**32 - 1 - words).double() + 0.5
    exact = -torch.log(-torch.log1p(-below_one * 2.0**-32)).float()
    assert (noise - exact).abs().max() < 3e-6
    assert (gumbel_noise_reference(words) - exact).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("vocab", [1, 3, 4, 31, 63, 64, 65, 2048, 20001])
def test_agrees_with_the_reference(vocab: int, dtype: torch.dtype) -> None:
    logits, *others = rows(16, vocab)
    logits = logits.to(dtype)
    tokens = sample(logits, *others)
    assert tokens.dtype == torch.int64
    assert_same_but_for_ties(tokens, (logits, *others))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300), st.floats(0, 30), st.floats(0, 1))
def test_agrees_with_the_reference_on_any_logits(
    seed: int, vocab: int, spread: float, blocked: float
) -> None:
    logits, *others = rows(4, vocab, seed, spread)
    logits[torch.rand(4, vocab, generator=torch.Generator().manual_seed(seed)) < blocked] = -INF
    assert_same_but_for_ties(sample(logits, *others), (logits, *others))


def test_a_flat_row_is_decided_by_noise_alone() -> None:
    logits, _, seed, position = rows(8, 20_000)
    arguments = (torch.zeros_like(logits), torch.ones(8), seed, position)
    tokens = sample(*arguments)
    assert len(set(tokens.tolist())) == 8
    assert_same_but_for_ties(tokens, arguments)


def test_half_precision_logits_are_widened_exactly() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    for dtype in (torch.float16, torch.bfloat16):
        values = every.view(dtype)[every.view(dtype).isfinite()]
        pairs = torch.stack([values[:-1], values[1:]], 1)
        expected = torch.where(pairs[:, 1] > pairs[:, 0], 1, 0)
        assert draw(pairs, 0.0) == expected.tolist()
        wide = values.float()[None].expand(2, -1)
        positions = torch.tensor([5, 6])
        rest = (torch.full((2,), 1e4), torch.tensor([1, 2]), positions)
        assert torch.equal(sample(values[None].expand(2, -1).contiguous(), *rest), sample(wide, *rest))


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
    assert draw(logits, 0.0) == [-1, -1, 99, -1]
    assert draw(logits, 1.0) == [-1, -1, 99, -1]
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


def chi_square(tokens: Tensor, probability: Tensor) -> float:
    """The statistic, in standard deviations above what its distribution has for a mean."""
    expected = probability.double() * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probability)).double()
    freedom = len(probability) - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


SMALL = torch.tensor([1.0, 0.5, -0.3, 2.0, 0.0, 1.4, -1.0, 0.2, 1.9])
DRAWS = 200_000


def small_draws(varied: str, temperature: float) -> Tensor:
    """200,000 draws from SMALL over seeds, positions or both."""
    counted, fixed = torch.arange(DRAWS), torch.full((DRAWS,), 12345)
    seed = {"seeds": counted, "positions": fixed, "both": counted // 500 * 2**33 + 17}[varied]
    position = {"seeds": fixed, "positions": counted, "both": counted % 500}[varied]
    return sample(SMALL.expand(DRAWS, -1), torch.full((DRAWS,), temperature), seed, position)


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
    tokens = small_draws("positions", 1.0)
    pairs = tokens[:-1] * 9 + tokens[1:]
    probability = SMALL.softmax(0)
    assert chi_square(pairs[::2], torch.outer(probability, probability).flatten()) < 5
    tokens = small_draws("seeds", 1.0)
    pairs = tokens[:-1] * 9 + tokens[1:]
    assert chi_square(pairs[::2], torch.outer(probability, probability).flatten()) < 5


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(threads: int) -> None:
    logits, temperature, seed, position = rows(40, 6001)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = sample(logits, temperature, seed, position)
    finally:
        torch.set_num_threads(before)
    alone = [
        int(sample(logits[i : i + 1], temperature[i : i + 1], seed[i : i + 1], position[i : i + 1]))
        for i in range(40)
    ]
    assert together.tolist() == alone
    order = torch.randperm(40)
    shuffled = sample(logits[order], temperature[order], seed[order], position[order])
    assert torch.equal(shuffled, together[order])
    misaligned = torch.zeros(40, 6007)[:, 3:6004]
    misaligned.copy_(logits)
    assert torch.equal(sample(misaligned, temperature, seed, position), together)


def test_every_bit_of_seed_and_position_counts() -> None:
    logits, one = torch.zeros(64, 100_000), torch.ones(64)
    bits = 1 << torch.arange(64)
    fixed = torch.zeros(64, dtype=torch.int64)
    assert len(set(sample(logits, one, bits, fixed).tolist())) > 60
    assert len(set(sample(logits, one, fixed, bits).tolist())) > 60


def test_a_drafter_with_the_same_logits_picks_the_same_token() -> None:
    logits, temperature, seed, position = rows(64, 4000)
    targets = torch.randperm(4000, generator=torch.Generator().manual_seed(3))[:1000]
    d2t = targets - torch.arange(1000)
    in_draft = torch.zeros(4000, dtype=torch.bool)
    in_draft[targets] = True
    expected = sample(logits.masked_fill(~in_draft, -INF), temperature, seed, position)
    assert torch.equal(sample(logits[:, targets], temperature, seed, position, d2t), expected)
    assert torch.equal(sample_reference(logits[:, targets], temperature, seed, position, d2t), expected)


def test_ties_among_drafts_go_to_the_lowest_target_token() -> None:
    d2t = torch.tensor([90, 50, 10]) - torch.arange(3)
    zero = torch.zeros(1, dtype=torch.int64)
    for temperature in (0.0, 1.0):
        logits = torch.full((1, 3), INF)
        assert sample(logits, torch.full((1,), temperature), zero, zero, d2t).item() == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.int64)}, "must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(8)}, r"must be \[n, vocab\]"),
        ({"logits": torch.zeros(8, 2).T}, "last dimension of logits"),
        ({"temperature": torch.zeros(2, dtype=torch.float64)}, r"temperature must be \[2\] float32"),
        ({"seed": torch.zeros(2, dtype=torch.int32)}, r"seed must be \[2\] int64"),
        ({"position": torch.zeros(3, dtype=torch.int64)}, r"position must be \[2\] int64 on cpu; got \[3\]"),
        ({"d2t": torch.zeros(7, dtype=torch.int64)}, r"d2t must be \[8\] int64"),
        ({"seed": torch.zeros(4, dtype=torch.int64)[::2]}, "seed must be contiguous"),
    ],
)
def test_says_what_is_wrong(change: dict[str, Tensor], message: str) -> None:
    given: dict[str, Tensor] = {
        "logits": torch.zeros(2, 8),
        "temperature": torch.zeros(2),
        "seed": torch.zeros(2, dtype=torch.int64),
        "position": torch.zeros(2, dtype=torch.int64),
    } | change
    with pytest.raises(InputError, match=message):
        sample(**given)


def test_is_opaque_under_fake_cuda_tensors() -> None:
    with FakeTensorMode():
        integers = torch.zeros(3, dtype=torch.int64, device="cuda")
        temperature = torch.zeros(3, device="cuda")
        for dtype in (torch.float32, torch.bfloat16):
            tokens = sample(torch.zeros(3, 64, device="cuda", dtype=dtype), temperature, integers, integers)
            assert (tokens.shape, tokens.dtype, tokens.device.type) == ((3,), torch.int64, "cuda")
        with pytest.raises(InputError, match="temperature must be"):
            sample(torch.zeros(3, 64, device="cuda"), temperature.cpu(), integers, integers)
