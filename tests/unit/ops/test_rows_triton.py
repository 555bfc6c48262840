"""Embeddings, norms and picked rows in Triton, through its interpreter, against plain torch and the CPU's kernels.

Run as a script under TRITON_INTERPRET=1 this file checks the kernels and prints what it found.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.linear import Case
from support.kernels.linear import Inputs as CaseInputs
from weft.ops.activation import SWIGLU, Activation, Epilogue, Function
from weft.ops.linear import Norm, add_norm
from weft.ops.rows import embed, join_norms, take_rows

SIZES = (64, 100, 1500)
DTYPES = {torch.float32: 2e-6, torch.float16: 2e-3}
VOCAB = 50
SCALE = 5.657
LIVE = (0, 1, 2, 3, 9)
ACTIVATED = (
    Case(3000, 8, activation=SWIGLU, gated=True),
    Case(1500, 8, activation=Activation(Function.RELU_SQUARED), residual=True, scale=0.3),
    Case(1500, 8, activation=Activation(Function.GELU_TANH), softcap=1.5),
    Case(130, 8, activation=Activation(Function.GELU), gated=True, residual=True, scale=2.0, softcap=0.5),
)
"""Sums that follow from unit rows."""


class Inputs:
    """Random rows of a size; among the tokens are some that the vocabulary does not have."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(11)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        self.weight = random(VOCAB, size)
        self.tokens = torch.tensor([3, VOCAB - 1, -1, VOCAB, 0, 1 << 40])
        self.hidden = random(len(self.tokens), size + 8)[:, :size]
        self.norms = Norm(random(size), 1e-5), Norm(random(size), 1e-6)
        self.x = random(3, 4, size)
        self.others = random(len(self.tokens), size + 4)[:, :size]
        self.index = torch.tensor([2, 0, 3])

    def wanted(self) -> dict[str, Tensor]:
        """In plain torch."""
        embedded = self.weight[self.tokens.clamp(0, VOCAB - 1)]
        scaled = (embedded.float() * SCALE).to(embedded.dtype)
        first, second = (
            F.rms_norm(x.double(), x.shape[1:], norm.weight.double(), norm.eps)
            for x, norm in zip((embedded.double(), self.hidden), self.norms, strict=True)
        )
        return {
            "embed": embedded,
            "scaled": scaled,
            "norm": second,
            "add_norm": self.others.double() + second,
            "join_norms": torch.cat((first, second), 1),
            "take_rows": self.x[torch.arange(3), self.index],
        }

    def errors(self, got: dict[str, Tensor]) -> dict[str, float]:
        """The largest error of each operation."""
        return {
            name: float((got[name].double() - wanted).abs().max()) for name, wanted in self.wanted().items()
        }


@pytest.mark.parametrize("size", SIZES)
def test_the_cpus_rows_match_plain_torch(size: int) -> None:
    inputs = Inputs(size, torch.float32)
    got = {
        "embed": embed(inputs.weight, inputs.tokens, torch.float32),
        "scaled": embed(inputs.weight, inputs.tokens, torch.float32, scale=SCALE),
        "norm": inputs.norms[1](inputs.hidden),
        "add_norm": add_norm(inputs.others, inputs.hidden, inputs.norms[1]),
        "join_norms": join_norms(
            inputs.weight, inputs.tokens, inputs.norms[0], inputs.hidden, inputs.norms[1]
        ),
        "take_rows": take_rows(inputs.x, inputs.index, inputs.x.new_empty(3, size)),
    }
    errors = inputs.errors(got)
    assert errors["embed"] == errors["scaled"] == errors["take_rows"] == 0
    assert max(errors.values()) < 1e-5


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the kernels, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_match_plain_torch(size: int, dtype: torch.dtype, found: dict[str, Any]) -> None:
    errors = found[f"{size} {dtype}"]
    assert errors["embed"] == errors["scaled"] == errors["take_rows"] == 0
    assert max(errors.values()) < 5 * DTYPES[dtype]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("live", LIVE)
def test_rows_that_are_not_live_are_left_alone(live: int, found: dict[str, Any]) -> None:
    """Live rows have the bits of a call without the others, whose inputs are NaN."""
    assert found[f"live {live}"] == []


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", ACTIVATED, ids=str)
def test_sums_are_activated(case: Case, found: dict[str, Any]) -> None:
    assert found[f"activate {case}"] < 1e-5


def touched(live: int) -> list[str]:
    """The operations on three rows that compute the first `live` ones otherwise than alone, or write to the others."""
    from weft.ops import linear_triton, rows_triton

    inputs = Inputs(100, torch.float32)
    first, second = inputs.norms
    hidden, x, gate_up = inputs.hidden[:3].clone(), inputs.x.clone(), torch.randn(3, 2 * 1100)
    others = inputs.others[:3].clone()
    for tensor in (hidden, x, gate_up, others):
        tensor[live:] = float("nan")

    def run(name: str, rows: int, out: Tensor, count: Tensor | None) -> Tensor:
        if name == "embed":
            rows_triton.embed(inputs.weight, inputs.tokens[:rows], out, count)
        elif name == "norm":
            rows_triton.norm(hidden[:rows], second.weight, second.eps, out, count)
        elif name == "add_norm":
            rows_triton.add_norm(others[:rows], hidden[:rows], second.weight, second.eps, out, count)
        elif name == "join_norms":
            rows_triton.join_norms(
                inputs.weight, inputs.tokens[:rows], first.weight, first.eps, hidden[:rows], second.weight, second.eps,
                out, count,
            )  # fmt: skip
        elif name == "take_rows":
            rows_triton.take_rows(x[:rows], inputs.index[:rows], out, count)
        else:
            linear_triton.activate(gate_up[:rows], None, Epilogue.of(SWIGLU, gated=True), out, count)
        return out

    wrong = []
    widths = {
        "embed": 100,
        "norm": 100,
        "add_norm": 100,
        "join_norms": 200,
        "take_rows": 100,
        "activate": 1100,
    }
    for name, width in widths.items():
        rows = min(live, 3)
        got = run(name, 3, torch.full((3, width), 7.0), torch.tensor([live]))
        alone = run(name, rows, torch.empty(rows, width), None) if rows else got[:0]
        if not torch.equal(got[:rows], alone) or not bool((got[rows:] == 7.0).all()):
            wrong.append(name)
    return wrong


def interpret() -> dict[str, Any]:
    """Every case through the kernels."""
    from weft.ops import linear_triton, rows_triton

    make_hostile(seed=8)
    results: dict[str, Any] = {}
    for size in SIZES:
        for dtype in DTYPES:
            inputs = Inputs(size, dtype)
            got = {name: torch.empty(wanted.shape, dtype=dtype) for name, wanted in inputs.wanted().items()}
            first, second = inputs.norms
            rows_triton.embed(inputs.weight, inputs.tokens, got["embed"])
            rows_triton.embed(inputs.weight, inputs.tokens, got["scaled"], None, SCALE)
            rows_triton.norm(inputs.hidden, second.weight, second.eps, got["norm"])
            rows_triton.add_norm(inputs.others, inputs.hidden, second.weight, second.eps, got["add_norm"])
            rows_triton.join_norms(
                inputs.weight, inputs.tokens, first.weight, first.eps, inputs.hidden, second.weight, second.eps,
                got["join_norms"],
            )  # fmt: skip
            rows_triton.take_rows(inputs.x, inputs.index, got["take_rows"])
            results[f"{size} {dtype}"] = inputs.errors(got)
    results |= {f"live {live}": touched(live) for live in LIVE}
    for case in ACTIVATED:
        inputs_of_case = CaseInputs(case)
        sums = torch.eye(case.inputs)[: case.rows] @ inputs_of_case.weight.T
        inputs_of_case.x = torch.eye(case.inputs)[: case.rows]
        out = torch.empty(case.rows, case.results)
        linear_triton.activate(sums, inputs_of_case.residual, case.epilogue, out)
        results[f"activate {case}"] = inputs_of_case.error(out)
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
