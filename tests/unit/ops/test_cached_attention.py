"""The CPU's attention over caches in other dtypes: float32 attention over the rounded numbers, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.kernels.attention import FEW, MANY, OTHER_FEW, OTHER_MANY, Case, Inputs
from support.kernels.cached import narrowed, quantized, widened
from weft.errors import InputError
from weft.models.memory import Pages
from weft.ops.attention import Heads, attend
from weft.ops.cached import CACHED

NARROW = tuple(name for name in CACHED if name != "float32")
CASES = (
    *(case for case in FEW + MANY + OTHER_FEW + OTHER_MANY if case.dtype == "float32"),
    Case(
        (33, 50), 3, heads=6, kv_heads=3, dim=17, value_dim=33, pairs=4
    ),  # an odd number of bytes before the scales
    Case((33, 50), 2, heads=2, kv_heads=2, dim=14, value_dim=3, page=5),
    *(Case((70, 130), 1, heads=count, kv_heads=1, dim=128) for count in (1, 2, 3, 5)),
    Case((40, 70), 20, heads=3, kv_heads=1, dim=72, softcap=3.0),
)


def turned_queries(inputs: Inputs) -> Tensor:
    """The queries of the new tokens after norm and rotation, with the kernel's bits: the keys that it would write."""
    case, heads, rows = inputs.case, inputs.heads, inputs.rows()
    count = case.heads * case.dim
    queries = inputs.new_tokens()[:, :count]
    pages = Pages(case.heads, case.dim, case.dim, values_in_keys=True)
    cache = torch.zeros(*inputs.cache.shape[:2], pages.width)
    norms = None if heads.norms is None else (heads.norms[0], heads.norms[0])
    attend(
        torch.cat((queries, queries), 1), pages.of(cache), rows, replace(heads, norms=norms, sink_logits=None)
    )
    first = rows.base.tolist()
    found = []
    for row, (start, length) in enumerate(zip(first, case.lengths, strict=True)):
        at = torch.arange(start, length)
        found.append(cache[rows.page_table[row, at // case.page].long(), at % case.page])
    return torch.cat(found)


def expected(inputs: Inputs, old: Tensor, new: Tensor) -> Tensor:
    """Float32 attention over the numbers `old` of the cache before the call, and `new` after it."""
    case, rows = inputs.case, inputs.rows()
    keys = []
    for row, (start, length) in enumerate(zip(rows.base.tolist(), case.lengths, strict=True)):
        at = torch.arange(start, length)
        keys.append(new[rows.page_table[row, at // case.page].long(), at % case.page])
    heads = Heads(
        case.heads,
        None,
        inputs.heads.scale,
        softcap=case.softcap,
        sink_logits=inputs.heads.sink_logits,
    )
    qkv = torch.cat((turned_queries(inputs), torch.cat(keys)), 1)
    return attend(qkv, case.memory.of(old), rows, heads, inputs.new_gates())


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_that_of_rounded_keys_in_float32(case: Case, name: str) -> None:
    inputs, exact = Inputs(replace(case, cached=name)), Inputs(case)
    pages, old = case.memory, widened(case.memory, inputs.cache)
    out = inputs.run(attend)
    exact.run(attend)
    as_bytes = inputs.cache.view(torch.uint8), narrowed(pages, exact.cache, CACHED[name]).view(torch.uint8)
    assert torch.equal(*as_bytes), (
        "keys and values are rounded as torch rounds them, and nothing else is written"
    )
    assert torch.equal(out, expected(inputs, old, widened(pages, inputs.cache)))
    assert not out.isnan().any()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("width", [2, 20])
def test_a_text_read_token_by_token_has_the_same_bits(width: int, name: str) -> None:
    case = Case((60, 33), width, heads=6, kv_heads=3, dim=32, norm=True, window=30, sinks=2, cached=name)
    whole, parts = Inputs(case), Inputs(case)
    out, tokens, rows = whole.run(attend).unflatten(0, (2, width)), parts.new_tokens(), parts.rows()
    for t in range(width):
        row = replace(rows, base=rows.base + t, width=1)
        alone = attend(tokens.unflatten(0, (2, width))[:, t].contiguous(), parts.layer, row, parts.heads)
        assert torch.equal(alone, out[:, t])
    assert torch.equal(whole.cache.view(torch.uint8), parts.cache.view(torch.uint8))


def written(numbers: Tensor, name: str) -> Tensor:
    """The values in a cache of dtype `name` after attention has written `numbers` [D] as a value."""
    size = len(numbers)
    pages = Pages(1, 4, size)
    cache = torch.zeros(2, 16, pages.size_in(CACHED[name]), dtype=CACHED[name])
    rows = Inputs(Case((1,), 1)).rows()
    rows = replace(rows, page_table=torch.ones(1, 1, dtype=torch.int32))
    attend(torch.cat((torch.zeros(8), numbers))[None], pages.of(cache), rows, Heads(1, None, 1.0))
    return widened(pages, cache)[1, 0, 4:]


def test_float8_is_rounded_to_nearest_and_saturates() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()].sort().values
    between = (every[1:] + every[:-1]) / 2
    numbers = torch.cat((every, between, between.nextafter(every[1:]), between.nextafter(every[:-1])))
    assert torch.equal(written(numbers, "fp8"), numbers.to(torch.float8_e4m3fn).float())
    large = torch.tensor([448.0, 464.0, 470.0, 1e30, float("inf"), -500.0, -float("inf")])
    assert written(large, "fp8").tolist() == [448.0] * 5 + [-448.0] * 2
    assert written(torch.tensor([float("nan"), 1.0]), "fp8").isnan().tolist() == [True, False]


def test_int8_errs_by_half_a_step_whatever_the_size() -> None:
    generator = torch.Generator().manual_seed(5)
    for size in (1e-20, 1e-3, 1.0, 1e6):
        numbers = torch.randn(64, generator=generator) * size
        step = quantized(numbers[None])[1].float()
        assert step <= numbers.abs().max() / 127 * (1 + 2**-7)
        assert (written(numbers, "int8") - numbers).abs().max() <= step * 0.5001
    assert not written(torch.zeros(8), "int8").any()
    assert written(torch.tensor([1.0, float("inf")]), "int8").isnan().all()


def test_other_dtypes_are_refused() -> None:
    inputs = Inputs(Case((20,), 2))
    layer = inputs.case.memory.of(inputs.cache.double())
    with pytest.raises(InputError, match=r"are float32, .*, float8_e4m3fn, int8; got torch\.float64"):
        attend(inputs.new_tokens(), layer, inputs.rows(), inputs.heads)
