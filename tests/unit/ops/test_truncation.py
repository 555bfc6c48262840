"""Top-k, top-p and min-p by slot on the CPU, against sorting in double precision.

What stays of a row shows in what is drawn of it. The floors themselves, which no operation gives, are held against
sorting in `cpp/kernels/test_draw_rules.cpp`.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.kernels.random_slots import DTYPES
from support.kernels.row_draws import RowDraws
from support.kernels.rows import check_rows, draft_rows, rows_params, sample_rows
from support.kernels.truncation import truncation_floor_reference
from support.products import rest_slow
from weft.ops.slots import SlotParams, sample_slots_

INF, NAN = float("inf"), float("nan")
LATE = 10_000


def asks(
    n: int,
    temperature: float | list[float] = 1.0,
    k: int | list[int] = 0,
    p: float | list[float] = 1.0,
    m: float | list[float] = 0.0,
    vocab: int = 8,
) -> SlotParams:
    """n slots that ask for this."""

    def vector(value: float | list[int] | list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype).expand(n)

    return rows_params(
        n,
        vocab,
        temperature=vector(temperature, torch.float32),
        seed=torch.arange(n),
        top_k=vector(k, torch.int32),
        top_p=vector(p, torch.float32),
        min_p=vector(m, torch.float32),
    )


def drawn(logits: Tensor, params: SlotParams, times: int = 3000) -> list[list[int]]:
    """All that is drawn of each row, at so many positions: all that stays, where none of it is unlikely."""
    tokens = sample_rows(logits, params, torch.full((len(logits),), LATE), times).view(-1, times)
    return [row.unique().tolist() for row in tokens]


def mixed(n: int, vocab: int, seed: int = 0) -> tuple[Tensor, SlotParams, Tensor]:
    """Logits, slots that ask for all kinds of things, for nothing or are greedy among them, and positions."""
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
    params = rows_params(
        n, vocab, temperature=temperature, seed=torch.arange(n), top_k=top_k, top_p=top_p, min_p=min_p
    )
    return logits, params, torch.arange(n) * LATE


def check_cuts(logits: Tensor, params: SlotParams, position: Tensor, times: int) -> None:
    tokens = sample_rows(logits, params, position, times)
    check_rows(tokens, logits, params, position, times=times)


@rest_slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 33, 64, 65, 300, 1536, 32000])
def test_agrees_with_sorting(vocab: int, dtype: torch.dtype) -> None:
    logits, *rest = mixed(40, vocab)
    check_cuts(logits.to(dtype), *rest, times=max(1, min(30, 16000 // vocab)))


@pytest.mark.parametrize("top_k", [0, 40, 5000])
def test_agrees_with_sorting_on_a_large_vocabulary(top_k: int) -> None:
    logits = torch.randn(3, 131072, generator=torch.Generator().manual_seed(1)) * 3
    params = asks(3, [0.7, 1.0, 3.0], top_k, [0.9, 0.5, 0.999], [0.0, 0.01, 0.0], vocab=131072)
    check_cuts(logits, params, torch.arange(3) * LATE, times=2)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 300))
def test_agrees_with_sorting_on_anything(seed: int, vocab: int) -> None:
    check_cuts(*mixed(8, vocab, seed), times=20)


def test_each_cut_on_a_row_that_one_can_check_by_hand() -> None:
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    params = asks(
        6,
        k=[2, 0, 0, 0, 3, 3],
        p=[1.0, 0.5, 0.72, 1.0, 0.75, 0.8],  # the fifth: 4 / 9 and 3 / 9 of what top-k left
        m=[0.0, 0.0, 0.0, 0.6, 0.0, 0.9],
    )
    assert drawn(logits.expand(6, -1), params) == [[1, 3], [1, 3], [1, 2, 3], [1, 3], [1, 3], [1]]


def test_temperature_counts_in_top_p_and_min_p() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0]).expand(2, -1)
    for asked in (asks(2, [0.3, 3.0], p=0.9), asks(2, [0.3, 3.0], m=0.1)):
        cold, hot = drawn(logits, asked)
        assert cold == [3] and hot[-3:] == [1, 2, 3]


def test_ties_stay_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0], [0.0, -0.0, 0.0, -0.0, -1.0]])
    assert drawn(logits, asks(2, k=2)) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert drawn(logits, asks(2, p=0.5)) == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_what_asks_for_nothing_is_not_cut() -> None:
    logits, position = torch.randn(7, 100), torch.full((7,), LATE)
    params = asks(
        7,
        [1.0, 1.0, 1.0, 1.0, 0.0, NAN, 1.0],
        [0, -3, 100, 2**31 - 1, 5, 5, 3],  # the last cuts
        [1.0, 2.0, NAN, 1.0, 0.1, 0.1, 1.0],
        [0, -1, NAN, 0, 1, 1, 0],
        vocab=100,
    )
    nothing = asks(7, params.temperature[:7].tolist(), vocab=100)
    cut, whole = (sample_rows(logits, each, position, 300).view(7, 300) for each in (params, nothing))
    assert torch.equal(cut[:6], whole[:6]) and not torch.equal(cut[6], whole[6])
    with_nothing = torch.full((2, 100), -INF)
    with_nothing[1] = NAN
    assert drawn(with_nothing, asks(2, 1.0, 3, 0.5, 0.1, vocab=100), 5) == [[-1], [-1]]


def test_the_largest_always_stays() -> None:
    """But where the temperature leaves no number of it."""
    for value in (-3e38, 0.0, 1e-45, 3e38, INF):
        logits = torch.full((4, 200), -INF)
        logits[:, 77] = value
        params = asks(4, [1e-5, 1.0, 1e30, INF], 1, 0.0, 5.0, vocab=200)
        tokens = drawn(logits, params, 10)
        assert tokens[1:3] == [[77], [77]], value
        assert tokens[0] == [77 if value > -3e38 else -1], value
        assert tokens[3] == [77 if value < INF else -1], value


def test_infinity_and_minus_infinity_and_nan_do_not_count() -> None:
    logits = torch.tensor([[NAN, 1.0, -INF, 3.0, 2.0, NAN], [NAN, 1.0, INF, 3.0, 2.0, NAN]])
    assert drawn(logits, asks(2, k=2)) == [[3, 4], [2]]
    assert drawn(logits[:1], asks(1, k=4)) == [[1, 3, 4]]  # there are only three
    assert drawn(logits, asks(2, p=0.99)) == [[1, 3, 4], [2]]


def test_half_precision_is_compared_after_widening() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    for dtype in (torch.float16, torch.bfloat16):
        logits = every.view(dtype).expand(4, -1).contiguous()
        logits[logits == INF] = 0
        params = asks(4, 1e30, k=[1, 100, 30_000, 60_000], vocab=2**16)
        position = torch.full((4,), LATE)
        tokens = sample_rows(logits, params, position, 8)
        assert torch.equal(tokens, sample_rows(logits.float(), params, position, 8))
        if dtype is torch.float16:  # flat, so that all that stays is as likely
            kth = logits.float().nan_to_num(nan=-INF, neginf=-INF).sort(1, descending=True).values
            least = kth.gather(1, params.top_k[:4].long()[:, None] - 1)
            assert (logits.float().gather(1, tokens.view(4, 8)) >= least).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 8, 64, 200, 256])
def test_few_logits_are_cut_as_many_are(vocab: int, dtype: torch.dtype) -> None:
    """Columns that are candidates without any mass make a histogram of what else is a bisection."""
    logits, params, position = mixed(60, vocab, seed=vocab)
    params.temperature[:] = params.temperature.where(params.temperature > 0.5, 1.0)
    temperature = params.temperature[:60]
    logits = logits.to(dtype)
    top = logits.float().nan_to_num(nan=-INF, neginf=-INF).amax(1, keepdim=True)
    massless = (top - 41.5 * 0.6931472 * temperature[:, None]).to(dtype)
    many = torch.cat((logits, massless.expand(-1, 3000)), 1)
    top_k, top_p = params.top_k[:60], params.top_p[:60]
    cuts = (top_k > 0) & (top_k < (logits > -INF).sum(1)) | (top_p < 1) & ~(top_k > 0)
    tokens, expected = (sample_rows(each, params, position, 30).view(60, 30) for each in (logits, many))
    assert torch.equal(tokens[cuts], expected[cuts])


def test_what_stays_depends_on_no_order_of_columns() -> None:
    """A permutation of the columns that `d2t` undoes changes no token."""
    logits, params, position = mixed(40, 6001)
    columns = torch.randperm(6001)
    d2t = columns - torch.arange(6001)
    expected = draft_rows(logits, params, position)
    assert torch.equal(draft_rows(logits[:, columns].contiguous(), params, position, d2t), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(threads: int) -> None:
    logits, params, position = mixed(40, 6001)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = sample_rows(logits, params, position)
    finally:
        torch.set_num_threads(before)
    slot, inputs = torch.arange(40), torch.zeros(1, 1, dtype=torch.int64)
    alone = [
        int(sample_slots_(logits[i : i + 1], slot[i : i + 1], position[i : i + 1] - 1, inputs, params))
        for i in range(40)
    ]
    assert together.tolist() == alone
    misaligned = torch.zeros(40, 6007)[:, 3:6004]
    misaligned.copy_(logits)
    assert torch.equal(sample_rows(misaligned, params, position), together)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sampling_keeps_to_the_floor(dtype: torch.dtype) -> None:
    """What is below might as well be blocked."""
    logits, params, position = mixed(200, 300)
    logits = logits.to(dtype)
    draws = RowDraws.of(params, torch.arange(200), position)
    floor = truncation_floor_reference(logits, draws.temperature, draws.top_k, draws.top_p, draws.min_p)
    tokens = sample_rows(logits, params, position)
    assert torch.equal(tokens, draws.tokens(logits))
    assert (logits.float().gather(1, tokens[:, None])[:, 0] >= floor).all()
    blocked = logits.masked_fill(logits.float() < floor[:, None], -INF)
    nothing = rows_params(200, 300, temperature=params.temperature[:200], seed=params.seed[:200])
    assert torch.equal(tokens, sample_rows(blocked, nothing, position))
    d2t = torch.randperm(300) * 2 - torch.arange(300)
    drafted = draft_rows(logits, params, position, d2t)
    assert torch.equal(drafted, draft_rows(blocked, nothing, position, d2t))


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

    params = asks(draws, temperature, k, p, m, vocab=9)
    tokens = sample_rows(logits.expand(draws, -1), params, torch.zeros(draws, dtype=torch.int64))
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
