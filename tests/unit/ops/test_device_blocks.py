"""Quantised weights in the layout of CUDA's kernels, and the kernels that read them, through Triton's interpreter.

Run as a script under TRITON_INTERPRET=1 this file checks the kernels and prints what it found.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.experts import Layer, layer_of, routed
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.linear import CLAMPED, Case, Inputs
from support.quantized import QUANTIZED, random_blocks
from weft.errors import InputError
from weft.ops.activation import SWIGLU, Activation, Epilogue, Function
from weft.ops.device_blocks import Codes, DeviceBlocks, stored_parts
from weft.ops.device_packing import DeviceStore, pack_device
from weft.ops.formats import Format
from weft.ops.library import cuda_operations
from weft.ops.packing import PackedPart, parts_of
from weft.ops.quantized import Quantized

KINDS = (
    Format.Q4_0,
    Format.Q4_1,
    Format.Q8_0,
    Format.Q4_K,
    Format.Q6_K,
    Format.IQ4_NL,
    Format.MXFP4,
    Format.INT4_64,
    Format.INT8_128,
    Format.FP8,
)
"""A format of each way to read weights."""
RUN = (
    Case(70, 300, rows=3, bias=True, norm=True, residual=True),
    Case(66, 520, rows=16, norm=True, added=True, activation=SWIGLU, gated=True, scale=1e-3, dtype="float16"),
)
EPILOGUES = (
    Case(64, 288, rows=1),
    Case(70, 130, bias=True, activation=Activation(Function.GELU), residual=True, scale=0.3),
    Case(66, 96, rows=7, norm=True, activation=CLAMPED, gated=True, bias=True, residual=True),
    Case(96, 130, bias=True, residual=True, softcap=2.0, scale=0.5),
    Case(33, 260, rows=16, norm=True, wide_norms=True, added=True, dtype="float16"),
    Case(70, 96, rows=3, bias=True, wide_out=True, dtype="float16"),
)
SEVERAL = tuple(
    case
    for rows in (3, 20)
    for case in (
        Case(70, 256, rows=rows, bias=True, norm=True, residual=True, scale=0.3),
        Case(70, 256, rows=rows, bias=True),
        Case(70, 256, rows=rows, norm=True, activation=SWIGLU, gated=True, residual=True),
        Case(70, 256, rows=rows, norm=True, added=True, activation=Activation(Function.GELU)),
    )
)
SCRIPTS = ("products", "experts", "others")
"""The checks by name; each runs in a process of its own."""
BITS = (Format.Q4_K, Format.FP8)
MIXED = (Format.Q4_K, Format.Q6_K)
LIVE = (0, 1, 5, 99)
VOCAB = 40


def inputs_of(kind: Format, count: int) -> int:
    """A number of inputs near `count`. K formats have whole blocks."""
    return max(1, count // 256) * 256 if kind.block.inputs == 256 else count


def plain(matrix: Quantized) -> Tensor:
    return matrix.dequantized().nan_to_num(nan=-7e30)


def widened(blocks: DeviceBlocks) -> Tensor:
    """The numbers of blocks [M, outputs, inputs], number by number as `device_blocks` describes them."""
    layout, codes = blocks.layout, blocks.codes
    if layout.codes.is_half:
        codes = torch.cat((codes & 15, codes >> 4), -1)
    scales = blocks.scales.float()
    if layout.codes is Codes.E4M3:
        numbers = codes.view(torch.float8_e4m3fn).float()
    elif layout.codes is Codes.INT8:
        numbers = codes.view(torch.int8).float()
    elif layout.codes is Codes.IQ4_NL:
        book = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])
        numbers = book[codes.long()]
    elif layout.codes is Codes.E2M1:
        half = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers = torch.cat((half, -half))[codes.long()]
        scales = torch.where(blocks.scales == 255, math.nan, torch.exp2(scales.double() - 127).float())
    else:
        numbers = codes.float() - (8 if layout.codes is Codes.SIGNED_NIBBLES else 0)
    lows = None if blocks.lows is None else blocks.lows.float()
    if blocks.supers is not None:
        factors = blocks.supers.float().repeat_interleave(256 // layout.group, 1)
        scales = scales * factors[:, :, 0]
        lows = None if lows is None else lows * -factors[:, :, 1]
    elif lows is not None and blocks.lows is not None and blocks.lows.dtype is torch.uint8:
        numbers, lows = numbers - lows[..., None], None
    numbers = numbers * scales[..., None]
    numbers = numbers if lows is None else numbers + lows[..., None]
    return numbers.permute(0, 2, 1, 3).flatten(2)[..., : blocks.num_inputs]


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("has_special", [False, True])
def test_blocks_have_the_same_numbers_on_the_device(kind: Format, has_special: bool) -> None:
    """Also in parts of rows that lie apart in memory."""
    inputs = inputs_of(kind, 300)
    whole = random_blocks(kind, 40, inputs, has_special=has_special)
    apart = Quantized(torch.cat((whole.data, whole.data), 1)[:, : whole.data.shape[1]], kind, inputs)
    parts = [apart[:8].view(2, 4, inputs), apart[8:9], apart[9:]]
    packed = pack_device(parts)
    assert parts_of(packed.parts) == [PackedPart(kind, 40, 0)], "parts of one format are joined"
    (blocks,) = stored_parts(packed.memory, packed.parts, 1, inputs)
    assert isinstance(blocks, DeviceBlocks)
    assert torch.equal(widened(blocks)[0].nan_to_num(nan=-7e30), plain(whole))


def test_memory_is_that_of_the_file_or_of_eight_bits() -> None:
    """In bytes a weight, as the documentation has them."""
    sizes = {}
    for kind in QUANTIZED:
        blocks = random_blocks(kind, 128, 1024)
        sizes[kind] = pack_device([blocks]).memory.nbytes / blocks.nbytes
    grown = {Format.Q5_0, Format.Q5_1, Format.Q5_K, Format.Q6_K}
    assert all(size <= 1.03 for kind, size in sizes.items() if kind not in grown), sizes
    assert all(1.3 < sizes[kind] < 1.57 for kind in grown), sizes


def test_formats_become_parts() -> None:
    first, second = (random_blocks(kind, rows, 512) for kind, rows in zip(MIXED, (6, 3), strict=True))
    dense = torch.randn(5, 512).bfloat16()
    packed = pack_device([first, first, second, dense])
    matrices = stored_parts(packed.memory, packed.parts, 1, 512)
    described = [(part.format, part.num_outputs) for part in parts_of(packed.parts)]
    assert described == list(zip((*MIXED, Format.BF16), (12, 3, 5), strict=True))
    got = [widened(part)[0] if isinstance(part, DeviceBlocks) else part[0] for part in matrices]
    wanted = [torch.cat((plain(first), plain(first))), plain(second), dense]
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_each_expert_has_its_place() -> None:
    gates, ups = random_blocks(Format.Q4_0, 15, 64), random_blocks(Format.Q4_1, 15, 64)
    both = [[gates[5 * e : 5 * e + 5], ups[5 * e : 5 * e + 5]] for e in range(3)]
    store = DeviceStore(3, both[0])
    for expert, matrices in enumerate(both):
        store.put(expert, matrices)
    matrices = stored_parts(store.packed.memory, store.packed.parts, 3, 64)
    for blocks, wanted in zip(matrices, (gates, ups), strict=True):
        assert isinstance(blocks, DeviceBlocks)
        assert torch.equal(widened(blocks).flatten(0, 1), plain(wanted))
    with pytest.raises(InputError, match=r"matrix 1 must be Q4_0 \[5, 64\], Q4_1 \[5, 64\] as the first"):
        store.put(1, both[1][::-1])


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the kernels, from interpreter processes."""
    return {name: value for script in SCRIPTS for name, value in interpreted(__file__, script).items()}


slow = pytest.mark.slow
by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@slow
@needs_triton
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_widened_numbers_are_exact(kind: Format, found: dict[str, Any]) -> None:
    """All of them, and some rows rounded to float16."""
    assert found[f"widened {kind.name}"]


@slow
@needs_triton
@by_name
@pytest.mark.parametrize("case", RUN, ids=str)
def test_products_match_plain_torch(kind: Format, case: Case, found: dict[str, Any]) -> None:
    """In tiles as they are chosen, and in several shares."""
    assert max(found[f"{kind.name} {case}"]) < case.tolerance


@slow
@needs_triton
@pytest.mark.parametrize("case", EPILOGUES, ids=str)
def test_what_follows_the_sums_matches_plain_torch(case: Case, found: dict[str, Any]) -> None:
    assert max(found[f"epilogue {case}"]) < case.tolerance


@slow
@needs_triton
@pytest.mark.parametrize("kind", BITS, ids=lambda kind: kind.name)
def test_a_rows_bits_are_its_own(kind: Format, found: dict[str, Any]) -> None:
    """Alone, and at another place."""
    assert found[f"bits {kind.name}"] == []


@slow
@needs_triton
@pytest.mark.parametrize("kind", BITS, ids=lambda kind: kind.name)
def test_rows_that_are_not_live_are_left_alone(kind: Format, found: dict[str, Any]) -> None:
    """Live rows have the bits of a call without the others, whose inputs are NaN."""
    assert found[f"live {kind.name}"] == []


@slow
@needs_triton
@by_name
def test_embeddings_match_plain_torch(kind: Format, found: dict[str, Any]) -> None:
    """Embeddings are exact; joined norms have small errors."""
    exact, error = found[f"embed {kind.name}"]
    assert exact
    assert error < 2e-6


@slow
@needs_triton
@pytest.mark.parametrize("kind", [*KINDS, None], ids=lambda kind: "mixed" if kind is None else kind.name)
def test_experts_match_one_product_after_another(kind: Format | None, found: dict[str, Any]) -> None:
    """With few choices and with sorted ones, the same bits; "mixed" has gates and ups in two formats."""
    error, same = found[f"experts {kind}"]
    assert error < 5e-6
    assert same


@slow
@needs_triton
@pytest.mark.parametrize("case", SEVERAL, ids=str)
@pytest.mark.parametrize("are_ordered", [False, True])
def test_products_of_several_formats_match_plain_torch(
    case: Case, are_ordered: bool, found: dict[str, Any]
) -> None:
    """A kernel for each part multiplies few rows. For many, torch multiplies by some widened outputs at a time. Inputs
    are in order, or in another order for each part."""
    assert found[f"parts {case} {are_ordered}"] < case.tolerance


class Quantised:
    """Inputs of a case, with a weight of a format."""

    def __init__(self, kind: Format, case: Case) -> None:
        self.case = replace(case, inputs=inputs_of(kind, case.inputs))
        self.inputs = Inputs(self.case)
        self.matrix = random_blocks(kind, case.outputs, self.case.inputs)
        packed = pack_device([self.matrix])
        (self.stored,) = stored_parts(packed.memory, packed.parts, 1, self.case.inputs)
        self.inputs.weight = self.matrix.dequantized()

    def run(
        self,
        shares: int = 0,
        rows: list[int] | slice = slice(None),
        live: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        from weft.ops.linear_triton import Tiles, linear

        case, inputs = self.case, self.inputs
        x, norm, residual, added = inputs.x[rows], inputs.norm, inputs.residual, inputs.added
        if out is None:
            out = x.new_empty(len(x), case.results, dtype=case.out_dtype)
        more: dict[str, Any] = {}
        if added is not None:
            more = {"added": added.rows[rows], "added_norm": added.norm.weight, "added_eps": added.norm.eps}
            more["total"] = added.total[rows] if isinstance(rows, slice) else added.total[: len(rows)]
        linear(
            x, self.stored, inputs.bias, norm and norm.weight, norm.eps if norm else 0.0,
            None if residual is None else residual[rows], case.epilogue, out,
            live=None if live is None else torch.tensor([live]),
            tiles=Tiles(32, 128, shares, 3) if shares else None, **more,
        )  # fmt: skip
        return out

    def errors(self) -> list[float]:
        """The errors of results and of totals, in the usual tiles and in others."""
        found = []
        for shares in (0, 2):
            found.append(self.inputs.error(self.run(shares)))
            if self.inputs.added is not None:
                wanted = self.inputs.wanted_total()
                found.append(float((self.inputs.added.total - wanted).abs().max() / wanted.abs().max()))
        return found


def interpret(script: str) -> dict[str, Any]:
    """Every case of a script through the kernels."""
    from weft.ops import linear as products
    from weft.ops import rows_triton
    from weft.ops.blocks_triton import widen
    from weft.ops.experts_triton import experts

    def is_widened(kind: Format) -> bool:
        inputs = inputs_of(kind, 300)
        matrix = random_blocks(kind, 40, inputs, has_special=True)
        packed = pack_device([matrix])
        (stored,) = stored_parts(packed.memory, packed.parts, 1, inputs)
        assert isinstance(stored, DeviceBlocks)
        wanted, out, some = matrix.dequantized(), torch.empty(40, inputs), torch.empty(7, inputs).half()
        widen(stored, 0, out)
        widen(stored, 30, some)
        pairs = (out, wanted), (some.float(), wanted[30:37].half().float())
        return all(torch.equal(a.nan_to_num(nan=-7e4), b.nan_to_num(nan=-7e4)) for a, b in pairs)

    def bits_differ(kind: Format) -> list[str]:
        given = Quantised(kind, Case(66, 400, rows=5, norm=True, activation=SWIGLU, gated=True))
        every = list(range(given.case.rows))
        whole = given.run(3)
        others = {
            "alone": torch.cat([given.run(3, [row]) for row in every]),
            "turned": given.run(3, every[::-1]).flip(0),
        }
        return [name for name, other in others.items() if not torch.equal(other, whole)]

    def wrong_live(kind: Format) -> list[int]:
        wrong = []
        for live in LIVE:
            given = Quantised(kind, Case(66, 400, rows=6, norm=True, added=True, residual=True))
            whole, inputs = given.run(2), given.inputs
            assert inputs.residual is not None and inputs.added is not None
            inputs.added.total.fill_(7.0)
            for tensor in (inputs.x, inputs.residual, inputs.added.rows):
                tensor[live:] = math.nan
            out = given.run(2, live=live, out=torch.full_like(whole, 7.0))
            untouched = bool((out[live:] == 7).all()) and bool((inputs.added.total[live:] == 7).all())
            if not untouched or not torch.equal(out[:live], whole[:live]):
                wrong.append(live)
        return wrong

    def embedded(kind: Format) -> tuple[bool, float]:
        width = inputs_of(kind, 300)
        given = Quantised(kind, Case(VOCAB, width, rows=6, norm=True))
        norm, hidden = given.inputs.norm, given.inputs.x
        assert norm is not None
        tokens = torch.tensor([3, VOCAB - 1, -1, VOCAB, 0, 1 << 40])
        rows = given.inputs.weight[tokens.clamp(0, VOCAB - 1)]
        out, joined = torch.full_like(rows, 7.0), torch.full((6, 2 * width), 7.0)
        rows_triton.embed(given.stored, tokens, out, torch.tensor([5]), 1.5)
        exact = torch.equal(out[:5], rows[:5] * 1.5) and bool((out[5] == 7).all())
        rows_triton.join_norms(
            given.stored, tokens, norm.weight, norm.eps, hidden, norm.weight, norm.eps, joined
        )
        weight = norm.weight.double()
        wanted = [F.rms_norm(part.double(), (width,), weight, norm.eps) for part in (rows, hidden)]
        return exact, float((joined - torch.cat(wanted, 1)).abs().max())

    def experts_of(kind: Format | None) -> tuple[float, bool]:
        number, inner, hidden = 3, 40, 288
        first, second = MIXED if kind is None else (kind, kind)
        if any(each.block.inputs == 256 for each in (first, second)):
            inner, hidden = 256, 256
        matrices = [
            [random_blocks(form, *sizes, seed=seed * 10 + expert) for expert in range(number)]
            for seed, (form, sizes) in enumerate(
                ((first, (inner, hidden)), (second, (inner, hidden)), (first, (hidden, inner)))
            )
        ]
        gate, up, down = (torch.stack([m.dequantized() for m in part]) for part in matrices)
        layer = Layer(gate, up, down, SWIGLU)
        biased = layer_of(number, inner, hidden, SWIGLU, has_bias=True)
        layer.gate_bias, layer.up_bias, layer.down_bias = biased.gate_bias, biased.up_bias, biased.down_bias
        stores = DeviceStore(number, [matrices[0][0], matrices[1][0]]), DeviceStore(number, [matrices[2][0]])
        for expert in range(number):
            stores[0].put(expert, [matrices[0][expert], matrices[1][expert]])
            stores[1].put(expert, [matrices[2][expert]])
        ups, downs = (
            stored_parts(store.packed.memory, store.packed.parts, number, inputs)
            for store, inputs in zip(stores, (hidden, inner), strict=True)
        )
        x, index, weights = routed(5, number, 2, hidden)
        epilogue = Epilogue.of(SWIGLU, gated=True)
        assert layer.gate_bias is not None and layer.up_bias is not None
        results = []
        for is_sorted in (False, True):
            out = torch.empty_like(x)
            experts(
                x, index, weights, ups, downs, torch.cat((layer.gate_bias, layer.up_bias), 1), layer.down_bias,
                *epilogue[:5], out, is_sorted=is_sorted,
            )  # fmt: skip
            results.append(out)
        wanted = layer(x, index, weights)
        return float((results[0] - wanted).abs().max() / wanted.abs().max()), torch.equal(*results)

    def error_of_parts(case: Case, are_ordered: bool) -> float:
        inputs = Inputs(case)
        half = case.outputs // 2
        parts: list[Tensor | Quantized] = [
            random_blocks(kind, rows, case.inputs) for kind, rows in zip(MIXED, (half, half - 5), strict=True)
        ]
        if case.gated:
            parts[1] = random_blocks(MIXED[1], half, case.inputs)
        else:
            parts.append(inputs.weight[:5])
        if are_ordered:
            parts = [
                part if isinstance(part, Tensor)
                else Quantized(part.data, part.format, case.inputs, torch.randperm(case.inputs).int())
                for part in parts
            ]  # fmt: skip
        dense = [part if isinstance(part, Tensor) else part.dequantized() for part in parts]
        inputs.weight = torch.cat(dense)
        packed, norm, added = pack_device(parts), inputs.norm, inputs.added
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        out = inputs.x.new_empty(case.rows, case.results)
        also = torch.empty_like(out)
        more = (None, None, 0.0, None)
        if added is not None:
            more = (added.rows, added.norm.weight, added.norm.eps, added.total)  # type: ignore[assignment]
        with (
            patch.object(products, "device_of", lambda tensor: nullcontext()),
            patch.object(products, "WIDENED", 20 * case.inputs),
        ):
            cuda_operations["linear"](
                inputs.x, *packed, inputs.bias, weight, eps, inputs.residual, *case.epilogue, out, also, None, *more
            )  # fmt: skip
        return max(inputs.error(out), inputs.error(also))

    make_hostile(seed=8)
    results: dict[str, Any] = {}
    if script == "products":
        for kind in KINDS:
            results |= {f"{kind.name} {case}": Quantised(kind, case).errors() for case in RUN}
        results |= {f"epilogue {case}": Quantised(Format.INT4_32, case).errors() for case in EPILOGUES}
    elif script == "experts":
        results |= {f"experts {kind}": experts_of(kind) for kind in (*KINDS, None)}
    else:
        results |= {f"widened {kind.name}": is_widened(kind) for kind in QUANTIZED}
        results |= {f"embed {kind.name}": embedded(kind) for kind in KINDS}
        results |= {
            f"parts {case} {are_ordered}": error_of_parts(case, are_ordered)
            for case in SEVERAL
            for are_ordered in (False, True)
        }
        for kind in BITS:
            results[f"bits {kind.name}"] = bits_differ(kind)
            results[f"live {kind.name}"] = wrong_live(kind)
    return results


if __name__ == "__main__":
    print(json.dumps(interpret(sys.argv[1])))
