"""A decoder's products of few rows in Triton, through its interpreter, against plain torch and the CPU's kernel.

Run as a script under TRITON_INTERPRET=1 this file checks the kernel and prints what it found.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.linear import CASES, Case, Inputs
from weft.ops.activation import SWIGLU
from weft.ops.linear import FEW_ROWS
from weft.ops.variants import NAMED, Variant, using

SHARES = (1, 2, 3)
BITS = (
    Case(200, 300, rows=FEW_ROWS, norm=True, activation=SWIGLU, gated=True),
    Case(96, 1000, rows=FEW_ROWS, norm=True, residual=True),
    Case(96, 1000, rows=FEW_ROWS, norm=True, added=True),
)
VARIED = (
    Case(96, 1000, rows=3, norm=True, residual=True),
    Case(320, 520, rows=4, norm=True, activation=SWIGLU, gated=True, dtype="float16"),
)


@pytest.mark.parametrize("case", [case for case in CASES if case.dtype == "float32"], ids=str)
def test_cpu_products_match_plain_torch(case: Case) -> None:
    inputs = Inputs(case)
    assert inputs.error(inputs.run()) < case.tolerance
    if inputs.added is not None:
        assert (inputs.added.total - inputs.wanted_total()).abs().max() < 1e-5


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the kernel gave, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shares", [0, *SHARES])
def test_products_match_plain_torch(case: Case, shares: int, found: dict[str, Any]) -> None:
    """In tiles as they are chosen, and in others with a number of shares."""
    assert found[f"{case} {shares}"] < case.tolerance


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", [case for case in CASES if case.added], ids=str)
def test_totals_are_written(case: Case, found: dict[str, Any]) -> None:
    assert found[f"total {case}"] < (1e-5 if case.dtype == "float32" else 3e-3)


@pytest.mark.slow
@needs_triton
def test_the_residual_may_be_where_the_result_goes(found: dict[str, Any]) -> None:
    assert found["in place"]


@pytest.mark.slow
@needs_triton
def test_large_values_of_half_precision_do_not_overflow(found: dict[str, Any]) -> None:
    assert found["large"] < 3e-3


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", BITS, ids=str)
def test_a_rows_bits_are_its_own(case: Case, found: dict[str, Any]) -> None:
    """Again, among fewer, alone, and at another place."""
    assert found[f"bits {case}"] == []


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", BITS, ids=str)
@pytest.mark.parametrize("name", ["default", "late"])
def test_rows_that_are_not_live_are_left_alone(name: str, case: Case, found: dict[str, Any]) -> None:
    """Live rows have the bits of a call without the others, whose inputs are NaN."""
    assert found[f"live {name} {case}"] == []


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", VARIED, ids=str)
@pytest.mark.parametrize("name", NAMED)
def test_variants_give_the_same(name: str, case: Case, found: dict[str, Any]) -> None:
    """The same bits as kernels that read nothing early, but for those that sum in another order."""
    same, error = found[f"{name} {case}"]
    assert error < case.tolerance
    assert same or sums_otherwise(NAMED[name])


@pytest.mark.slow
@needs_triton
def test_a_copy_of_the_result_is_written_too(found: dict[str, Any]) -> None:
    assert found["also"]


def test_a_copy_of_the_result_is_written_too_on_the_cpu() -> None:
    for case in (CASES[3], CASES[4]):
        inputs = Inputs(case)
        assert copy_is_written(inputs, inputs.linear())


@needs_triton
def test_tiles_are_enough_to_fill_a_gpu() -> None:
    from weft.ops.linear_triton import choose_tiles

    assert choose_tiles(6144, 4096, 2) == (64, 128, 4, 3)
    assert choose_tiles(28672, 4096, 2) == (64, 128, 1, 3)
    assert choose_tiles(4096, 14336, 2).shares == 4
    assert choose_tiles(128256, 4096, 2).shares == 1
    assert choose_tiles(192, 192, 2).shares == 1, "shares of less than two tiles are not worth joining"


def sums_otherwise(variant: Variant) -> bool:
    usual = NAMED["default"]
    return (variant.outputs, variant.inputs, variant.split_wide) != (
        usual.outputs,
        usual.inputs,
        usual.split_wide,
    )


def copy_is_written(inputs: Inputs, product: Any) -> bool:
    """Whether a product writes its result to two places, and nothing between the rows of the second."""
    wide = inputs.x.new_full((inputs.case.rows, 2000), 7.0)
    out = inputs.run(product)
    also = wide[:, 5 : 5 + out.shape[1]]
    again = product(inputs.x, inputs.norm, residual=inputs.residual, also=also)
    is_written = torch.equal(again, out) and torch.equal(also, out)
    also.fill_(7.0)
    return is_written and bool((wide == 7.0).all())


def bits_differ(case: Case, run: Any) -> list[str]:
    """In which company a row has other bits; `run` gives the product of some rows, by number."""
    every = list(range(case.rows))
    whole: Tensor = run(every)
    others = {
        "again": run(every),
        "few": torch.cat([run(every[:3]), run(every[3:])]),
        "alone": torch.cat([run([row]) for row in every]),
        "turned": run(every[::-1]).flip(0),
    }
    return [name for name, other in others.items() if not torch.equal(other, whole)]


def interpret() -> dict[str, Any]:
    """Every case through the kernel."""
    from weft.ops.linear_triton import Tiles, choose_tiles, linear

    def run(
        inputs: Inputs, shares: int, rows: list[int] | slice = slice(None), out: Tensor | None = None
    ) -> Tensor:
        case, norm, residual = inputs.case, inputs.norm, inputs.residual
        x = inputs.x[rows]
        tiles = Tiles(32, 32, shares, 3) if shares else None
        out = x.new_empty(len(x), case.results, dtype=case.out_dtype) if out is None else out
        linear(
            x, inputs.weight, inputs.bias, norm and norm.weight, norm.eps if norm else 0.0,
            None if residual is None else residual[rows], case.epilogue, out, tiles=tiles,
            **parts(inputs, rows),
        )  # fmt: skip
        return out

    def parts(inputs: Inputs, rows: list[int] | slice = slice(None)) -> dict[str, Any]:
        """The launch's arguments for added rows."""
        if inputs.added is None:
            return {}
        added = inputs.added
        return {
            "added": added.rows[rows],
            "added_norm": added.norm.weight,
            "added_eps": added.norm.eps,
            "total": added.total[rows] if isinstance(rows, slice) else added.total[: len(rows)],
        }

    def written_twice(case: Case) -> Any:
        inputs = Inputs(case)

        def product(x: Tensor, norm: Any, *, residual: Tensor, also: Tensor | None = None) -> Tensor:
            out = x.new_empty(case.rows, case.outputs)
            linear(x, inputs.weight, inputs.bias, norm.weight, norm.eps, residual, case.epilogue, out, also)
            return out

        return product

    def wrong_live(case: Case) -> list[int]:
        """The numbers of live rows with which other rows are written, or live ones have other bits."""
        inputs, wrong = Inputs(case), []
        assert inputs.norm is not None
        whole = run(inputs, 3)
        width = whole.shape[1]
        for live in (0, 1, 5, case.rows, 99):
            x, residual = inputs.x.clone(), None if inputs.residual is None else inputs.residual.clone()
            added = parts(inputs)
            if added:
                added |= {"added": added["added"].clone(), "total": torch.full_like(x, 7.0)}
            for tensor in (x, residual, added.get("added")):
                if tensor is not None:
                    tensor[live:] = float("nan")
            outs = torch.full((2, case.rows, width), 7.0)
            linear(
                x, inputs.weight, inputs.bias, inputs.norm.weight, inputs.norm.eps, residual, case.epilogue,
                outs[0], outs[1], torch.tensor([live]), tiles=Tiles(32, 32, 3, 3),
                **added,
            )  # fmt: skip
            if added and not bool((added["total"][live:] == 7.0).all()):
                wrong.append(live)
            if any(not torch.equal(out[:live], whole[:live]) or (out[live:] != 7.0).any() for out in outs):
                wrong.append(live)
        return wrong

    def in_place() -> bool:
        inputs = Inputs(CASES[3])
        wanted = run(inputs, 2)
        assert inputs.residual is not None
        return torch.equal(run(inputs, 2, out=inputs.residual), wanted)

    def large() -> float:
        inputs = Inputs(replace(CASES[9], residual=False))
        inputs.x[:, 3] = 60000.0
        inputs.x[1] *= -1
        assert inputs.norm is not None
        inputs.norm.weight[3] = 2.0
        return inputs.error(run(inputs, 0))

    make_hostile(seed=6)
    assert choose_tiles(130, 1040, 4).shares > 1
    results: dict[str, Any] = {}
    for case in CASES:
        inputs = Inputs(case)
        results |= {f"{case} {shares}": inputs.error(run(inputs, shares)) for shares in (0, *SHARES)}
        if inputs.added is not None:
            results[f"total {case}"] = float((inputs.added.total - inputs.wanted_total()).abs().max())
    for case in BITS:
        results[f"bits {case}"] = bits_differ(case, lambda rows, case=case: run(Inputs(case), 3, rows))
        for name in ("default", "late"):
            with using(name):
                results[f"live {name} {case}"] = wrong_live(case)
    for case in VARIED:
        inputs = Inputs(case)
        with using("late"):
            usual = run(inputs, 0)
        of_structure: dict[tuple[object, ...], tuple[bool, float]] = {}
        for name, variant in NAMED.items():
            structure = (variant.early, variant.outputs, variant.inputs, variant.split_wide)
            if structure not in of_structure:
                with using(name):
                    got = run(inputs, 0)
                of_structure[structure] = torch.equal(got, usual), inputs.error(got)
            results[f"{name} {case}"] = of_structure[structure]
    results["also"] = copy_is_written(Inputs(CASES[3]), written_twice(CASES[3]))
    return results | {"in place": in_place(), "large": large()}


if __name__ == "__main__":
    print(json.dumps(interpret()))
