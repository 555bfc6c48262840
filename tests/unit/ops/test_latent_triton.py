"""Multi-head latent attention in Triton, through its interpreter, against its products in float64.

Run as a script under TRITON_INTERPRET=1 this file checks the kernels and prints what it found.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.latent import LatentLayer, Sizes

CASES = (
    Sizes(3, 0, 32, 16, 64, 64),
    Sizes(2, 0, 24, 6, 70, 33),
    Sizes(2, 0, 96, 8, 130, 65, torch.float16),
    Sizes(2, 0, 64, 16, 64, 64, torch.bfloat16),
    Sizes(1, 0, 1, 2, 1, 1),
)
COMPRESSED = (
    Sizes(3, 96, 32, 16, 64, 64),
    Sizes(2, 70, 24, 6, 70, 33),
    Sizes(2, 600, 96, 8, 130, 65, torch.float16),
    Sizes(2, 512, 64, 32, 64, 64, torch.bfloat16),
    Sizes(1, 1, 1, 2, 1, 1),
)
"""With a share of the inputs for each program, where there are enough of them."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
ROWS = (1, 16, 17, 70)
FEW = (1, 9, 16)
LIVE = (0, 1, 16, 69, 100)

pytestmark = [pytest.mark.slow, needs_triton]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the kernels, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_products_are_those_in_float64(sizes: Sizes, found: dict[str, Any]) -> None:
    for count in ROWS:
        assert found[f"error {sizes} {count}"] < TOLERANCE[sizes.dtype], count


@pytest.mark.parametrize("sizes", COMPRESSED, ids=str)
def test_queries_from_compressed_ones_are_those_in_float64(sizes: Sizes, found: dict[str, Any]) -> None:
    for count in FEW:
        assert found[f"error {sizes} {count}"] < TOLERANCE[sizes.dtype], count


@pytest.mark.parametrize("sizes", [*CASES[:4], *COMPRESSED[:4]], ids=str)
def test_a_row_has_the_same_bits_alone_and_among_others(sizes: Sizes, found: dict[str, Any]) -> None:
    assert found[f"different {sizes}"] == []


def test_queries_are_rounded_between_the_products(found: dict[str, Any]) -> None:
    """As transformers rounds them: to the dtype of the weights."""
    assert found["rounded"]


@pytest.mark.parametrize("count", LIVE)
def test_rows_that_are_not_live_are_neither_read_nor_written(count: int, found: dict[str, Any]) -> None:
    assert found[f"live {count}"] == found[f"live compressed {count}"] == [True, True]


def interpret() -> dict[str, Any]:
    from weft.ops import latent_triton

    class Products:
        """The kernels with the weights of a layer. Rows lie apart in memory, with NaN between them."""

        def __init__(self, sizes: Sizes) -> None:
            self.sizes, self.layer = sizes, LatentLayer(sizes)

        def queries(self, x: Tensor, live: Tensor | None = None, fill: float = float("nan")) -> Tensor:
            sizes, layer, norm = self.sizes, self.layer, self.layer.kv_norm
            key = sizes.latent + sizes.rotated
            out = x.new_full((len(x), (sizes.heads + 1) * key), fill)
            rows, split = apart(x), x.shape[1] - key
            common = layer.k_up.contiguous(), norm.weight, norm.eps, sizes.rotated, out, live
            if layer.q_up is None:
                latent_triton.queries(rows[:, :split], rows[:, split:], *common)
            else:
                weight, eps = (None, 0.0) if layer.q_norm is None else (layer.q_norm.weight, layer.q_norm.eps)
                latent_triton.up_queries(rows[:, :split], rows[:, split:], layer.q_up, weight, eps, *common)
            return out

        def values(self, attended: Tensor, live: Tensor | None = None, fill: float = float("nan")) -> Tensor:
            out = attended.new_full((len(attended), self.sizes.heads * self.sizes.value), fill)
            latent_triton.values(apart(attended), self.layer.v_up.contiguous(), out, live)
            return out

        def inputs(self, count: int) -> tuple[Tensor, Tensor]:
            layer, dtype = self.layer, self.sizes.dtype
            return layer.rows(count).to(dtype), layer.attended(count).to(dtype)

        def rounded(self) -> bool:
            """Whether the queries of integers, which float32 adds exactly, are rounded between the products."""
            layer, sizes = self.layer, self.sizes
            assert layer.q_up is not None
            layer.q_norm = None
            layer.q_up = layer.q_up.mul(16).round()
            layer.k_up = layer.k_up.mul(16).round().div(256)
            x = layer.rows(5).mul(256).round().to(sizes.dtype)
            query = x[:, : sizes.query].float() @ layer.q_up.T.float()
            plain = query.to(sizes.dtype).float().unflatten(1, (sizes.heads, -1))[..., : sizes.nope]
            assert not torch.equal(query, query.to(sizes.dtype).float())
            wanted = torch.einsum("nhd,hdr->nhr", plain, layer.k_up.float()).to(sizes.dtype)
            got = self.queries(x).unflatten(1, (sizes.heads + 1, -1))[:, :-1, : sizes.latent]
            return torch.equal(got, wanted)

        def error(self, count: int) -> float:
            """The largest error relative to the largest result."""
            x, attended = self.inputs(count)
            pairs = (
                (self.queries(x), self.layer.expected_queries(x)),
                (self.values(attended), self.layer.expected_values(attended)),
            )
            errors = [(got.double() - wanted).abs().max() / wanted.abs().max() for got, wanted in pairs]
            return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())

        def different(self) -> list[str]:
            """Rows whose bits differ in other company: among few rows, and among many."""
            names = []
            x, attended = self.inputs(80)
            if self.sizes.query:
                few = self.queries(x[:16])
                return [
                    f"queries {r}" for r in (0, 9) if not torch.equal(self.queries(x[r, None])[0], few[r])
                ]
            for name, product, rows in (("queries", self.queries, x), ("values", self.values, attended)):
                few, many = product(rows[:16]), product(rows)
                names += [f"{name} {r}" for r in (0, 9) if not torch.equal(product(rows[r, None])[0], few[r])]
                names += [f"{name} from 40"] * (not torch.equal(product(rows[40:80]), many[40:80]))
            return names

        def live(self, count: int) -> list[bool]:
            """Whether queries and values of live rows are right, and others neither read nor written."""
            rows = 16 if self.sizes.query else 70
            results, number = [], torch.tensor([count])
            count = min(count, rows)
            inputs = self.inputs(rows)
            for product, rows in zip((self.queries, self.values), inputs, strict=True):
                wanted = product(rows)
                rows[count:] = float("nan")
                got = product(rows, number, 7.0)
                results.append(torch.equal(got[:count], wanted[:count]) and bool((got[count:] == 7).all()))
            return results

    make_hostile(seed=4)
    results: dict[str, Any] = {
        f"error {sizes} {count}": Products(sizes).error(count) for sizes in CASES for count in ROWS
    }
    results |= {
        f"error {sizes} {count}": Products(sizes).error(count) for sizes in COMPRESSED for count in FEW
    }
    results |= {f"different {sizes}": Products(sizes).different() for sizes in (*CASES[:4], *COMPRESSED[:4])}
    results["rounded"] = Products(replace(COMPRESSED[3], dtype=torch.float16)).rounded()
    small = replace(CASES[1], heads=1)
    results |= {f"live {count}": Products(small).live(count) for count in LIVE}
    compressed = replace(COMPRESSED[1], heads=1)
    return results | {f"live compressed {count}": Products(compressed).live(count) for count in LIVE}


def apart(rows: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (2, 3), value=float("nan"))[:, 2:-3]


if __name__ == "__main__":
    print(json.dumps(interpret()))
