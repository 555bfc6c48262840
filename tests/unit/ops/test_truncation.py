"""Top-k, top-p and min-p on the CPU, against sorting in double precision."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import InputError
from weft.ops.sampling import sample, sample_reference
from weft.ops.truncation import truncation_floor, truncation_floor_reference

INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def asks(
    n: int, k: int | list[int] = 0, p: float | list[float] = 1.0, m: float | list[float] = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """top_k, top_p and min_p of n rows."""

    def vector(value: float | list[int] | list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype).expand(n).contiguous()

    return vector(k, torch.int32), vector(p, torch.float32), vector(m, torch.float32)


def mixed(n: int, vocab: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits and parameters of all kinds, neutral ones and greedy rows among them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=generator)
    logits *= torch.tensor([3.0, 0.5, 10.0, 0.0]).repeat(n // 4 + 1)[:n, None]
    logits[torch.rand(n, vocab, generator=generator) < 0.1] = -INF
    logits[torch.rand(n, vocab, generator=generator) < 0.02] = NAN
    temperature = torch.rand(n, generator=generator) * 2 + 0.1
    temperature[::7] = 0
    top_k = torch.randint(-1, vocab + 2, (n,), generator=generator).int()
    top_k[::3] = min(vocab, 5)
    top_k[1::3] = 0
    top_p = torch.rand(n, generator=generator)
    top_p[::4] = 1
    min_p = torch.rand(n, generator=generator) * 0.2
    min_p[::2] = 0
    return logits, temperature, top_k, top_p, min_p


def assert_cuts_alike(logits: Tensor, *asked: Tensor) -> None:
    """What stays is what stays in the reference, but for logits whose sum of probabilities is within rounding."""
    floor, expected = truncation_floor(logits, *asked), truncation_floor_reference(logits, *asked)
    x = logits.float()
    for i in ((x >= floor[:, None]) != (x >= expected[:, None])).any(1).nonzero().flatten().tolist():
        temperature, top_k, top_p, min_p = (a[i : i + 1] for a in asked)
        around = [
            truncation_floor_reference(
                logits[i : i + 1], temperature, top_k, top_p + sign * 2e-6, min_p * (1 - sign * 2e-5)
            )
            for sign in (1, -1)
        ]
        assert around[0] <= floor[i] <= around[1] or around[1] <= floor[i] <= around[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 33, 64, 65, 300, 1536, 32000])
def test_agrees_with_sorting(vocab: int, dtype: torch.dtype) -> None:
    logits, *asked = mixed(40, vocab)
    assert_cuts_alike(logits.to(dtype), *asked)


@pytest.mark.parametrize("top_k", [0, 40, 5000])
def test_agrees_with_sorting_on_a_large_vocabulary(top_k: int) -> None:
    logits = torch.randn(3, 131072, generator=torch.Generator().manual_seed(1)) * 3
    assert_cuts_alike(
        logits, torch.tensor([0.7, 1.0, 3.0]), *asks(3, top_k, [0.9, 0.5, 0.999], [0.0, 0.01, 0.0])
    )


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300))
def test_agrees_with_sorting_on_anything(seed: int, vocab: int) -> None:
    logits, *asked = mixed(8, vocab, seed)
    assert_cuts_alike(logits, *asked)


def test_each_cut_on_a_row_that_one_can_check_by_hand() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    one = torch.ones(1)
    for asked, kept in [
        (asks(1, k=2), [1, 3]),
        (asks(1, p=0.5), [1, 3]),
        (asks(1, p=0.72), [1, 2, 3]),
        (asks(1, m=0.6), [1, 3]),
        (asks(1, k=3, p=0.75), [1, 3]),  # 4 / 9 and 3 / 9 of what top-k left
        (asks(1, k=3, p=0.8, m=0.9), [1]),
    ]:
        floor = truncation_floor(logits[None], one, *asked)
        assert (logits >= floor).nonzero().flatten().tolist() == kept


def test_temperature_counts_in_top_p_and_min_p() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(2, -1)
    for asked in (asks(2, p=0.9), asks(2, m=0.1)):
        cold, hot = truncation_floor(logits, torch.tensor([0.3, 3.0]), *asked).tolist()
        assert cold == pytest.approx(3.0, abs=0.7) and hot <= 1.0


def test_ties_stay_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0], [0.0, -0.0, 0.0, -0.0, -1.0]])
    one = torch.ones(2)
    assert truncation_floor(logits, one, *asks(2, k=2)).tolist() == [1.0, 0.0]
    assert truncation_floor(logits, one, *asks(2, p=0.5)).tolist() == [1.0, 0.0]


def test_what_asks_for_nothing_is_not_cut() -> None:
    logits = torch.randn(6, 100)
    top_k, top_p, min_p = asks(
        6, [0, -3, 100, 2**31 - 1, 5, 5], [1.0, 2.0, NAN, 1.0, 0.1, 0.1], [0, -1, NAN, 0, 1, 1]
    )
    temperature = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, NAN])
    assert truncation_floor(logits, temperature, top_k, top_p, min_p).tolist() == [-INF] * 6
    with_nothing = torch.full((2, 100), -INF)
    with_nothing[1] = NAN
    assert truncation_floor(with_nothing, torch.ones(2), *asks(2, 3, 0.5, 0.1)).tolist() == [-INF] * 2


def test_the_largest_always_stays() -> None:
    for value in (-3e38, 0.0, 1e-45, 3e38, INF):
        logits = torch.full((4, 200), -INF)
        logits[:, 77] = value
        floor = truncation_floor(logits, torch.tensor([1e-5, 1.0, 1e30, INF]), *asks(4, 1, 0.0, 5.0))
        assert (floor <= value).all(), value


def test_infinity_and_minus_infinity_and_nan_do_not_count() -> None:
    logits = torch.tensor([[NAN, 1.0, -INF, 3.0, 2.0, NAN], [NAN, 1.0, INF, 3.0, 2.0, NAN]])
    one = torch.ones(2)
    assert truncation_floor(logits, one, *asks(2, k=2)).tolist() == [2.0, 3.0]
    assert truncation_floor(logits, one, *asks(2, k=4)).tolist() == [-INF, 1.0]  # the first has only three
    assert truncation_floor(logits, one, *asks(2, p=0.99)).tolist() == [1.0, INF]


def test_half_precision_is_compared_after_widening() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    for dtype in (torch.float16, torch.bfloat16):
        logits = every.view(dtype)[None]
        for k in (1, 100, 30_000, 60_000):
            asked = (torch.ones(1), *asks(1, k=k))
            assert truncation_floor(logits, *asked) == truncation_floor(logits.float(), *asked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 8, 64, 200, 256])
def test_few_logits_are_cut_as_many_are(vocab: int, dtype: torch.dtype) -> None:
    """Columns that are candidates without any mass make a histogram of what else is a bisection."""
    logits, temperature, top_k, top_p, min_p = mixed(60, vocab, seed=vocab)
    logits, temperature = logits.to(dtype), temperature.where(temperature > 0.5, 1.0)
    top = logits.float().nan_to_num(nan=-INF, neginf=-INF).amax(1, keepdim=True)
    massless = (top - 41.5 * 0.6931472 * temperature[:, None]).to(dtype)
    many = torch.cat((massless.expand(-1, 3000), logits), 1)
    cuts = (top_k > 0) & (top_k < (logits > -INF).sum(1)) | (top_p < 1) & ~(top_k > 0)
    asked = temperature, top_k, top_p, min_p
    expected, floor = truncation_floor(many, *asked), truncation_floor(logits, *asked)
    assert torch.equal(floor[cuts], expected[cuts])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(threads: int) -> None:
    logits, *asked = mixed(40, 6001)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = truncation_floor(logits, *asked)
    finally:
        torch.set_num_threads(before)
    alone = [float(truncation_floor(logits[i : i + 1], *[a[i : i + 1] for a in asked])) for i in range(40)]
    assert together.tolist() == alone
    misaligned = torch.zeros(40, 6007)[:, 3:6004]
    misaligned.copy_(logits)
    assert torch.equal(truncation_floor(misaligned, *asked), together)
    columns = torch.randperm(6001)
    assert torch.equal(truncation_floor(logits[:, columns].contiguous(), *asked), together)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sampling_keeps_to_the_floor(dtype: torch.dtype) -> None:
    logits, temperature, *asked = mixed(200, 300)
    logits = logits.to(dtype)
    floor = truncation_floor(logits, temperature, *asked)
    seed, position = torch.arange(200), torch.arange(200) * 7
    tokens = sample(logits, temperature, seed, position, None, floor)
    assert torch.equal(tokens, sample_reference(logits, temperature, seed, position, None, floor))
    assert (logits.float().gather(1, tokens[:, None])[:, 0] >= floor).all()
    blocked = logits.masked_fill(logits.float() < floor[:, None], -INF)
    assert torch.equal(tokens, sample(blocked, temperature, seed, position))
    d2t = torch.randperm(300) * 2 - torch.arange(300)
    drafted = sample(logits, temperature, seed, position, d2t, floor)
    assert torch.equal(drafted, sample(blocked, temperature, seed, position, d2t))


def test_a_floor_above_everything_leaves_no_token() -> None:
    zero = torch.zeros(2, dtype=torch.int64)
    floor = torch.tensor([0.5, -INF])
    for temperature in (0.0, 1.0):
        tokens = sample(torch.zeros(2, 100), torch.full((2,), temperature), zero, zero, None, floor)
        assert tokens[0] == -1 and tokens[1] >= 0


@pytest.mark.parametrize(("k", "p", "m"), [(4, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.3), (5, 0.9, 0.25)])
def test_tokens_are_distributed_as_the_truncated_softmax(k: int, p: float, m: float) -> None:
    logits = torch.tensor([1.0, 0.5, -0.3, 2.0, 0.0, 1.4, -1.0, 0.2, 1.9])
    draws, temperature = 100_000, 0.8
    probability, order = (logits.double() / temperature).softmax(0).sort(descending=True)
    kept = torch.arange(9) < (k or 9)
    within = probability * kept / (probability * kept).sum()
    kept &= within.cumsum(0) - within < p
    kept &= probability >= m * probability[0]
    expected = torch.zeros(9).double()
    expected[order] = probability * kept / (probability * kept).sum()

    rows = logits.expand(draws, -1)
    asked = (torch.full((draws,), temperature), *asks(draws, k, p, m))
    tokens = sample(
        rows, asked[0], torch.arange(draws), torch.zeros(draws).long(), None, truncation_floor(rows, *asked)
    )
    counts = torch.bincount(tokens, minlength=9).double()
    assert 1 < kept.sum() < 9
    assert (counts[expected == 0] == 0).all()
    stays = expected > 0
    statistic = ((counts - draws * expected) ** 2 / (draws * expected))[stays].sum()
    freedom = float(stays.sum()) - 1
    assert (statistic - freedom) / (2 * freedom) ** 0.5 < 5
    wrong = expected.where(expected != expected.max(), expected.max() * 1.05)
    wrong = wrong / wrong.sum()
    assert ((counts - draws * wrong) ** 2 / (draws * wrong))[stays].sum() > freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.float64)}, "must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(8)}, r"must be \[n, vocab\]"),
        ({"logits": torch.zeros(8, 2).T}, "last dimension of logits"),
        (
            {"logits": torch.empty(1, 2**23 + 1, dtype=torch.bfloat16).expand(2, -1)},
            "at most 8388608",
        ),
        ({"top_k": torch.zeros(2, dtype=torch.int64)}, r"top_k must be \[2\] int32"),
        ({"top_p": torch.zeros(3)}, r"top_p must be \[2\] float32"),
        ({"min_p": torch.zeros(2, dtype=torch.float64)}, r"min_p must be \[2\] float32"),
        ({"temperature": torch.zeros(4)[::2]}, "temperature must be contiguous"),
    ],
)
def test_says_what_is_wrong(change: dict[str, Tensor], message: str) -> None:
    given: dict[str, Tensor] = {
        "logits": torch.zeros(2, 8),
        "temperature": torch.ones(2),
        "top_k": torch.zeros(2, dtype=torch.int32),
        "top_p": torch.ones(2),
        "min_p": torch.zeros(2),
    } | change
    with pytest.raises(InputError, match=message):
        truncation_floor(**given)


def test_is_opaque_under_fake_cuda_tensors() -> None:
    with FakeTensorMode():
        one = torch.ones(3, device="cuda")
        floor = truncation_floor(torch.zeros(3, 64, device="cuda"), one, one.int(), one, one)
        assert (floor.shape, floor.dtype, floor.device.type) == ((3,), torch.float32, "cuda")
        integers = one.long()
        assert sample(torch.zeros(3, 64, device="cuda"), one, integers, integers, None, floor).shape == (3,)
        with pytest.raises(InputError, match="floor must be"):
            sample(torch.zeros(3, 64, device="cuda"), one, integers, integers, None, floor.cpu())
