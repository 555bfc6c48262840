"""Operations with numbers, and of every dtype: a replay gives the bits and the dtype that a run gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.captured import Captured
from support.products import rest_slow

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)

COMPUTATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "times": lambda x, n: x * n,
    "number times": lambda x, n: n * x,
    "plus": lambda x, n: x + n,
    "plus a multiple": lambda x, n: torch.add(x, n, alpha=2),
    "plus a multiple of a tensor": lambda x, n: torch.sub(x, x + 1, alpha=3),
    "minus": lambda x, n: x - n,
    "number minus": lambda x, n: n - x,
    "over": lambda x, n: x / n,
    "number over": lambda x, n: n / (x + 100),
    "floored": lambda x, n: x // n,
    "modulo": lambda x, n: x % n,
    "fmod": lambda x, n: torch.fmod(x, n),
    "cut off": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "to a power": lambda x, n: x**n,
    "squared": lambda x, n: x**2,
    "cubed": lambda x, n: x**3,
    "root": lambda x, n: x.abs() ** 0.5,
    "powers of two": lambda x, n: 2 ** (x % 4),
    "equal": lambda x, n: x == n,
    "less": lambda x, n: x < n,
    "at least": lambda x, n: x.clamp(min=n),
    "between": lambda x, n: x.clamp(-3, 3),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "where of numbers": lambda x, n: torch.where(x > 0, n, 0),
    "masked": lambda x, n: x.masked_fill(x > 0, n),
    "filled by index": lambda x, n: x.index_fill(0, torch.tensor([1]), n),
    "scattered": lambda x, n: x.scatter(1, x.long().abs() % 4, n),
    "padded": lambda x, n: F.pad(x, (1, 2), value=n),
    "between two": lambda x, n: torch.lerp(x, x * 2, 0.3),
    "a sum of products": lambda x, n: torch.addcmul(x, x, x, value=2),
    "a matrix product": lambda x, n: torch.addmm(x, x, x, beta=0.5, alpha=2),
    "bits": lambda x, n: (x ^ 3) & 9,
    "leaky": lambda x, n: F.leaky_relu(x, 0.1),
    "gelu": lambda x, n: F.gelu(x, approximate="tanh"),
    "rounded": lambda x, n: x.round(decimals=1),
    "sum": lambda x, n: x.sum(1, dtype=torch.float64),
    "mean": lambda x, n: x.mean(1),
    "a norm": lambda x, n: x.norm(p=3, dim=1),
    "softmax": lambda x, n: x.softmax(1, dtype=torch.float32),
    "a quantile": lambda x, n: x.quantile(0.5),
    "one hot": lambda x, n: F.one_hot(x.long().abs() % 4, 4),
    "a range": lambda x, n: x * torch.arange(0, 1, 0.25) + torch.linspace(0, 1, 4),
    "times in place": lambda x, n: x.clone().mul_(n),
    "plus in place": lambda x, n: x.clone().add_(n),
    "minus in place": lambda x, n: x.clone().sub_(n),
    "over in place": lambda x, n: x.clone().div_(n),
    "filled in place": lambda x, n: x.clone().fill_(n),
    "masked in place": lambda x, n: x.clone().masked_fill_(x > 0, n),
}


def computed(fn: Callable[[Tensor, float], Tensor], x: Tensor, number: float) -> Tensor | None:
    """None where torch refuses."""
    try:
        with torch.inference_mode():
            return fn(x, number)
    except (RuntimeError, NotImplementedError):
        return None


@rest_slow
@pytest.mark.parametrize("number", [3, 0.1, -7, 2.5, True])
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_numbers_count_as_they_do_in_a_run(name: str, number: float) -> None:
    """0.1 is another number in each dtype of floats; -7 is none of those without a sign."""
    fn = COMPUTATIONS[name]
    for dtype in DTYPES:
        x = (torch.randn(4, 4) * 5).to(dtype)
        expected = computed(fn, x, number)
        if expected is None:
            continue
        out = torch.zeros_like(expected)

        def launched(x: Tensor = x, out: Tensor = out) -> None:
            result = fn(x, number)
            assert (result.dtype, result.shape) == (out.dtype, out.shape)
            out.copy_(result)

        Captured(launched).replay()
        torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
