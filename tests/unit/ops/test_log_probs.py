"""Log-probabilities, against log_softmax where that is defined."""

from __future__ import annotations

import pytest
import torch

from weft.errors import InputError
from weft.ops.log_probs import log_probs, log_probs_within

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_drawn_token_and_the_largest(dtype: torch.dtype) -> None:
    logits, token = (torch.randn(6, 300) * 4).to(dtype), torch.randint(0, 300, (6,))
    logits[:, 5:90] = -INF
    values, ids = log_probs(logits, token, 7)
    expected = logits.double().log_softmax(1).float()
    assert (values.dtype, ids.dtype, values.shape) == (torch.float32, torch.int64, (6, 8))
    assert torch.equal(ids[:, 0], token)
    torch.testing.assert_close(values, expected.gather(1, ids))
    torch.testing.assert_close(values[:, 1:], expected.topk(7, 1).values)


def test_no_token_no_largest_and_rows_without_any() -> None:
    logits = torch.zeros(4, 10)
    logits[1] = -INF
    logits[2] = NAN
    logits[3, 1:] = NAN
    values, ids = log_probs(logits, torch.tensor([-1, 4, 4, 0]), 2)
    assert values[0].tolist() == pytest.approx([-INF, -2.302585, -2.302585])
    assert values[1:].tolist() == [[-INF] * 3, [-INF] * 3, [0.0, 0.0, -INF]]
    assert ids[:, 0].tolist() == [-1, 4, 4, 0]
    assert log_probs(logits, torch.zeros(4, dtype=torch.int64), 0)[0].shape == (4, 1)


def test_no_more_than_the_vocabulary() -> None:
    logits, token = torch.randn(2, 5), torch.tensor([0, 4])
    assert sorted(log_probs(logits, token, 5)[1][0, 1:].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="the 6 most probable tokens were asked for; the vocabulary has 5"):
        log_probs(logits, token, 6)


@pytest.mark.parametrize("most", [5, 40, 10**6])
def test_within_the_largest(most: int) -> None:
    g = torch.Generator().manual_seed(most)
    logits, top_k = torch.randn(40, 30, generator=g), torch.randint(-1, 6, (40,), generator=g)
    logits[:, 3], logits[7, 4:] = -INF, NAN
    top_k[5] = 30
    token = logits.nan_to_num(-INF).argmax(1)
    values, ids = log_probs_within(logits, token, 6, top_k, most)
    for row, k, given, found in zip(logits, top_k.tolist(), values, ids, strict=True):
        x = row.double().nan_to_num(-INF)
        kept = x.sort(descending=True).values[: k if 0 < k < 30 else 30]
        for value, column in zip(given.tolist(), found.tolist(), strict=True):
            likely = float(x[column]) - float(kept.logsumexp(0))
            expected = likely if x[column] >= kept[-1] else -INF
            assert value == pytest.approx(expected, abs=1e-5)


def test_ties_with_the_last_are_within() -> None:
    values, _ = log_probs_within(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([1]), 3, torch.tensor([1]), 1)
    assert values[0].tolist() == pytest.approx([-0.693147, -0.693147, -0.693147, -INF])
