"""Mixtures of experts in Triton, through its interpreter, against one product after another.

Run as a script under TRITON_INTERPRET=1 this file checks the kernels and prints what it found.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from support.experts import Layer, layer_of, routed
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from weft.ops.activation import Activation, Function

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3}


SILU = Activation(Function.SILU)
CLAMPED = Activation(Function.SILU, slope=1.702, limit=1.0, shift=1.0)


@dataclass(frozen=True)
class Case:
    rows: int
    experts: int
    chosen: int
    inner: int
    hidden: int
    activation: Activation = SILU
    gated: bool = True
    has_bias: bool = False
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        kind = self.activation.function.name.lower()
        sizes = (self.rows, self.experts, self.chosen, self.inner, self.hidden)
        flags = [name for name in ("gated", "has_bias") if getattr(self, name)]
        name = "-".join(map(str, (*sizes, kind, *flags)))
        return f"{name}-{str(self.dtype).removeprefix('torch.')}"

    @property
    def choices(self) -> int:
        return self.rows * self.chosen

    def layer(self) -> Layer:
        sizes = self.experts, self.inner, self.hidden
        return layer_of(*sizes, self.activation, self.dtype, gated=self.gated, has_bias=self.has_bias)

    def inputs(self, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        x, index, weights = routed(self.rows, self.experts, self.chosen, self.hidden, seed)
        return x.to(self.dtype), index, weights


CASES = (
    Case(1, 4, 2, 40, 48),
    Case(33, 8, 2, 70, 72, CLAMPED, has_bias=True),
    Case(9, 64, 8, 33, 40, dtype=torch.float16),
    Case(
        70, 2, 1, 64, 64, has_bias=True, dtype=torch.float16
    ),  # more than a large tile of rows for an expert
    Case(50, 5, 3, 130, 31, Activation(Function.GELU)),
    Case(6, 3, 3, 20, 200, Activation(Function.GELU_TANH)),
    Case(6, 3, 3, 20, 48, Activation(Function.RELU_SQUARED), gated=False, has_bias=True),
    Case(6, 1, 1, 1, 3, Activation(Function.RELU), gated=False),
    Case(6, 3, 2, 20, 48, Activation(Function.NONE)),
    Case(150, 130, 2, 16, 16),  # more choices, and more experts, than a block of the sort
    Case(60, 2, 2, 24, 32),  # several tiles of an expert without sorting
)
FEW_CHOICES = 128
LIVE = (0, 1, 20, 33, 40)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the kernels, from one interpreter process."""
    return interpreted(__file__)


pytestmark = [pytest.mark.slow, needs_triton]
both = pytest.mark.parametrize("is_sorted", [False, True])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_one_product_after_another(case: Case, found: dict[str, Any]) -> None:
    assert found[str(case)] < TOLERANCE[case.dtype]


@pytest.mark.parametrize("case", [case for case in CASES if case.choices <= FEW_CHOICES], ids=str)
def test_bits_do_not_depend_on_sorting(case: Case, found: dict[str, Any]) -> None:
    assert found[f"unsorted {case}"]


@both
def test_a_rows_bits_are_its_own(is_sorted: bool, found: dict[str, Any]) -> None:
    assert found[f"bits {is_sorted}"] == []


@both
@pytest.mark.parametrize("live", LIVE)
def test_rows_that_are_not_live_are_left_alone(live: int, is_sorted: bool, found: dict[str, Any]) -> None:
    """Live rows have the bits of a call without the others, whose inputs are NaN."""
    assert found[f"live {live} {is_sorted}"]


@both
def test_a_residual_is_added_in_place(is_sorted: bool, found: dict[str, Any]) -> None:
    assert found[f"residual {is_sorted}"]


@both
def test_an_index_that_is_no_expert_adds_nothing(is_sorted: bool, found: dict[str, Any]) -> None:
    assert found[f"no expert {is_sorted}"] < TOLERANCE[torch.float32]


@both
def test_weights_of_experts_without_rows_are_not_used(is_sorted: bool, found: dict[str, Any]) -> None:
    assert found[f"untouched {is_sorted}"]


def test_tiles_are_small_for_few_rows() -> None:
    from weft.ops.experts_triton import choose_tiles

    assert choose_tiles(8, 128, 2).rows == choose_tiles(128 * 16, 128, 2).rows == 16
    assert choose_tiles(2048 * 8, 128, 2).rows == 64


def interpret() -> dict[str, Any]:
    """Every case through the kernels."""
    from weft.ops.experts_triton import experts

    def run(
        layer: Layer,
        given: tuple[Tensor, Tensor, Tensor],
        live: Tensor | None = None,
        fill: float = 0.0,
        residual: Tensor | None = None,
        is_sorted: bool | None = None,
    ) -> Tensor:
        x, index, weights = given
        spaced = torch.cat((x, x), 1)[:, : x.shape[1]]  # rows any distance apart
        parts = [part for part in (layer.gate, layer.up) if part is not None]
        biases = [part for part in (layer.gate_bias, layer.up_bias) if part is not None]
        act = layer.activation
        out = torch.full_like(x, fill) if residual is None else residual
        experts(
            spaced, index, weights, [torch.cat(parts, 1)], [layer.down], torch.cat(biases, 1) if biases else None,
            layer.down_bias, layer.gate is not None, int(act.function), act.slope, act.limit, act.shift, out, live,
            residual, is_sorted=is_sorted,
        )  # fmt: skip
        return out

    def error(actual: Tensor, expected: Tensor) -> float:
        return float((actual.double() - expected).abs().max() / expected.abs().max())

    def checks(case: Case, is_sorted: bool) -> dict[str, Any]:
        """The other facts, with sorted choices or without."""
        run_so = partial(run, is_sorted=is_sorted)
        results: dict[str, Any] = {}
        layer, given = case.layer(), case.inputs()
        whole = run_so(layer, given)
        rows = range(len(whole))
        others = {
            "again": run_so(layer, given),
            "alone": torch.cat([run_so(layer, tuple(part[row, None] for part in given)) for row in rows[:5]]),
            "turned": run_so(layer, tuple(part.flip(0) for part in given)).flip(0),
        }
        results["bits"] = [name for name, bits in others.items() if not torch.equal(bits, whole[: len(bits)])]
        for live in LIVE:
            x, index, weights = (part.clone() for part in given)
            x[live:], index[live:], weights[live:] = math.nan, 1 << 40, math.nan
            out = run_so(layer, (x, index, weights), torch.tensor([live]), 7.0)
            results[f"live {live}"] = torch.equal(out[:live], whole[:live]) and bool((out[live:] == 7).all())

        stream = torch.randn(len(whole), 100)[:, : whole.shape[1]]
        sums, before = stream + whole, stream.clone()
        added = run_so(layer, given, torch.tensor([20]), residual=stream)
        results["residual"] = torch.equal(added[:20], sums[:20]) and torch.equal(added[20:], before[20:])
        x, index, weights = given
        index[:, 1], index[3], weights[5, 1] = 8, -1, math.nan
        index[4, 0] = 1 << 40
        expected = layer(x, index, torch.where(index == 8, 0, weights))
        results["no expert"] = error(run_so(layer, (x, index, weights)), expected)
        index[index == 7] = 6
        whole = run_so(layer, (x, index, weights))
        assert layer.gate is not None
        for tensor in (layer.gate, layer.up, layer.down):
            tensor[7] = math.nan
        results["untouched"] = torch.equal(run_so(layer, (x, index, weights)), whole) and bool(
            whole.isfinite().all()
        )
        return {f"{name} {is_sorted}": value for name, value in results.items()}

    make_hostile(seed=6)
    results: dict[str, Any] = {}
    for case in CASES:
        layer, given = case.layer(), case.inputs()
        results[str(case)] = error(run(layer, given), layer(*given))
        if case.choices <= FEW_CHOICES:
            both = [run(layer, given, is_sorted=is_sorted) for is_sorted in (False, True)]
            results[f"unsorted {case}"] = torch.equal(*both)

    for is_sorted in (False, True):
        results |= checks(CASES[1], is_sorted)
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
