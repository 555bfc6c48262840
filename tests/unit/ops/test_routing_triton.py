"""Routers of mixtures of experts in Triton, through its interpreter, against sorting in float64.

Run as a script under TRITON_INTERPRET=1 this file checks the kernel and prints what it found.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.routing import CHOICES, by_sorting, logits_of
from weft.ops.linear import Norm
from weft.ops.routing import Choice, Chosen, Scores, choose

ROWS, HIDDEN = 9, 72
LIVE = (0, 1, 5, 9, 12)
DTYPES = (torch.float32, torch.float16)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the kernel, from one interpreter process."""
    return interpreted(__file__)


pytestmark = [pytest.mark.slow, needs_triton]


@pytest.mark.parametrize("dtype", [str(dtype) for dtype in DTYPES])
@pytest.mark.parametrize("name", CHOICES)
def test_values_are_those_of_sorting(name: str, dtype: str, found: dict[str, Any]) -> None:
    """The indices are equal, and these are the errors of weights and of normed rows."""
    index, weights, rows = found[f"{name} {dtype}"]
    assert index and weights < 2e-6 and rows < (2e-6 if "float32" in dtype else 3e-3)


@pytest.mark.parametrize("name", CHOICES)
def test_a_rows_bits_are_its_own(name: str, found: dict[str, Any]) -> None:
    assert found[f"{name} bits"]


@pytest.mark.parametrize("live", LIVE)
def test_rows_that_are_not_live_are_left_alone(live: int, found: dict[str, Any]) -> None:
    """Live rows have the bits of a call without the others, whose inputs are NaN."""
    assert found[f"live {live}"]


@pytest.mark.parametrize("name", CHOICES)
def test_nan_and_infinity_give_indices_of_experts(name: str, found: dict[str, Any]) -> None:
    assert found[f"{name} nan"]


def test_of_equal_scores_the_lower_index_is_chosen(found: dict[str, Any]) -> None:
    assert found["ties"]


def test_without_a_norm_the_rows_are_those_given(found: dict[str, Any]) -> None:
    assert found["no norm"]


def hidden(dtype: torch.dtype) -> tuple[Tensor, Norm]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS, 2 * HIDDEN, generator=generator).to(dtype)[:, :HIDDEN]
    return x, Norm(torch.rand(HIDDEN, generator=generator), 1e-5)  # of float32 with rows of any dtype


def interpret() -> dict[str, Any]:
    """Every choice through the kernel."""
    from weft.ops.routing_triton import choose as launch

    def run(
        logits: Tensor,
        choice: Choice,
        bias: Tensor | None,
        x: Tensor,
        norm: Norm | None,
        live: Tensor | None = None,
    ) -> Chosen:
        chosen = choice.top_k + choice.num_shared
        out = Chosen(
            torch.full(x.shape, 7.0, dtype=x.dtype),
            torch.full((len(x), chosen), 7),
            torch.full((len(x), chosen), 7.0),
        )
        launch(
            torch.cat((logits, logits), 1)[:, : logits.shape[1]], bias, logits.shape[1] - choice.shared_gate,
            choice.top_k, int(choice.scores), choice.renormalize, choice.scale, choice.num_groups,
            choice.num_top_groups, choice.group_top, choice.num_shared, choice.shared_gate, x,
            None if norm is None else norm.weight, 0.0 if norm is None else norm.eps, out.experts, out.weights,
            None if norm is None else out.rows, live,
        )  # fmt: skip
        return out

    def equal(actual: Chosen, expected: Chosen, rows: slice | list[int] = slice(None)) -> bool:
        return all(torch.equal(mine, other[rows]) for mine, other in zip(actual, expected, strict=True))

    make_hostile(seed=3)
    results: dict[str, Any] = {}
    for name, (experts, choice, _) in CHOICES.items():
        logits, bias = logits_of(name, ROWS)
        for dtype in DTYPES:
            x, norm = hidden(dtype)
            out = run(logits.to(dtype), choice, bias, x, norm)
            index, weights = by_sorting(logits.to(dtype), choice, bias)
            normed = Norm(norm.weight, norm.eps)(x.float())
            error = float(((out.weights.double() - weights).abs() / weights.abs().clamp(min=1e-3)).max())
            same = torch.equal(out.experts, index)
            results[f"{name} {dtype}"] = same, error, float((out.rows.float() - normed).abs().max())
        x, norm = hidden(torch.float32)
        whole = run(logits, choice, bias, x, norm)
        alone = [run(logits[n, None], choice, bias, x[n, None], norm) for n in range(4)]
        results[f"{name} bits"] = all(equal(one, whole, slice(n, n + 1)) for n, one in enumerate(alone))
        logits[2, experts // 2], logits[4], logits[6, :experts] = math.nan, math.nan, math.inf
        out = run(logits, choice, bias, x, norm)
        others = [0, 1, 3, 5, 7, 8]
        results[f"{name} nan"] = (
            equal(Chosen(*(tensor[others] for tensor in out)), whole, others)
            and bool(out.weights[2, : choice.top_k].isnan().any())
            and all(
                len(set(row)) == len(row) and set(row) <= set(range(experts + choice.num_shared))
                for row in out.experts.tolist()
            )
        )

    logits, bias = logits_of("deepseek v3", ROWS)
    choice, (x, norm) = CHOICES["deepseek v3"][1], hidden(torch.float32)
    whole = run(logits, choice, bias, x, norm)
    for live in LIVE:
        logits, x = logits_of("deepseek v3", ROWS)[0], hidden(torch.float32)[0].clone()
        logits[live:], x[live:] = math.nan, math.nan
        out = run(logits, choice, bias, x, norm, torch.tensor([live]))
        kept = Chosen(*(tensor[:live] for tensor in out))
        results[f"live {live}"] = equal(kept, whole, slice(live)) and all(
            bool((tensor[live:] == 7).all()) for tensor in out
        )
    logits = torch.tensor(
        [[1.0, 2, 2, 2, -0.0, 2], [0, 0, 0, 0, 0, 0], [-math.inf, 0, -math.inf, -0.0, -math.inf, 0]]
    )
    x = torch.zeros(3, 4)
    results["ties"] = all(
        torch.equal(
            run(logits, Choice(4, scores), None, x, None).experts,
            choose(logits, Choice(4, scores), None, x, None).experts,
        )
        for scores in Scores
    )
    results["no norm"] = bool((run(logits, Choice(2), None, x, None).rows == 7).all())
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
