"""Triton's attention over caches in float8 and int8, through its interpreter: attention over the rounded numbers.

Run as a script under TRITON_INTERPRET=1 this file checks the Triton kernels and prints what it found.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.attention import ALL, ROTATED_MLA, Attend, Case, Inputs
from support.kernels.cached import narrowed, widened
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from weft.errors import InputError
from weft.ops.attention import Heads, KVLayer, Rows
from weft.ops.cached import CACHED

pytestmark = [pytest.mark.slow, needs_triton]

SHAPES = (
    Case((70, 7), 2, shares=2),
    Case((40, 12), 2, dim=24, page=8, norm=True),
    Case((65, 3), widths=(5, 3), shares=2),
    Case((50,), 17, heads=4, kv_heads=2, dim=32),
    Case((60, 40), widths=(20, 17), dim=24, value_dim=16, pairs=0, logits=True),
    Case((70,), 2, heads=4, kv_heads=4, dim=64, dtype="float16", shares=2, norm=True),
    Case((70,), 3, dim=96, dtype="bfloat16", norm=True, logits=True, shares=2),
    replace(ROTATED_MLA, lengths=(40,), width=2),
    replace(ALL, lengths=(50,)),
    replace(ALL, lengths=(50,), width=17),
)
CASES = tuple(replace(case, cached=name) for case in SHAPES for name in ("fp8", "int8"))
BITS = tuple(case for case in CASES if case.dtype == "float32" and not case.widths)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return interpreted(__file__)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_that_of_rounded_keys(case: Case, found: dict[str, Any]) -> None:
    assert found[str(case)]["error"] < case.tolerance


@pytest.mark.parametrize("case", CASES, ids=str)
def test_keys_are_rounded_as_on_the_cpu(case: Case, found: dict[str, Any]) -> None:
    """Those of the model's dtype, after norm and rotation."""
    assert found[str(case)]["is_rounded"]


@pytest.mark.parametrize("case", BITS, ids=str)
def test_a_text_read_token_by_token_has_the_same_bits(case: Case, found: dict[str, Any]) -> None:
    assert found[str(case)]["is_same"]


def test_other_dtypes_are_refused() -> None:
    from weft.ops import attention_triton

    inputs = Inputs(Case((20,), 2))
    layer = inputs.case.memory.of(inputs.cache.half())
    with pytest.raises(InputError, match=r"as qkv, float8_e4m3fn or int8; got torch\.float16"):
        attention_triton.attend(*arguments(inputs.new_tokens(), layer, inputs.rows(), inputs.heads, None))


def arguments(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads, gate: Tensor | None) -> tuple[Any, ...]:
    out = qkv.new_empty(qkv.shape[0], heads.count * layer.values.shape[3])
    q_norm, k_norm = heads.norms or (None, None)
    return (
        qkv, layer.keys, layer.values, rows.page_table, rows.base, rows.count, rows.starts, rows.width,
        rows.offset, True, 0, 0, heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale,
        heads.softcap, heads.sink_logits, layer.window.size, layer.window.sinks, out, heads.first_rotated, gate,
    )  # fmt: skip


def see_cache(inputs: Inputs) -> None:
    """Make the cached keys and values those of the texts."""
    case = inputs.case
    numbers = widened(case.memory, inputs.cache).nan_to_num()
    layer = case.memory.of(numbers)
    for row, (length, (queries, _, _)) in enumerate(zip(case.lengths, inputs.texts, strict=True)):
        at = torch.arange(length)
        pages = inputs.page_table[row, at // case.page].long()
        inputs.texts[row] = queries, layer.keys[pages, at % case.page], layer.values[pages, at % case.page]


def interpret() -> dict[str, Any]:
    from weft.ops.attention_triton import Call, attend_few, attend_long

    def way(case: Case) -> Attend:
        def run(*terms: Any) -> Tensor:
            call = Call(*arguments(*terms))
            if max(case.counts) <= 16:
                attend_few(call, len(call.base), case.shares)
            else:
                attend_long(call)
            return call.out

        return run

    def is_same(case: Case) -> bool:
        whole, parts = Inputs(case), Inputs(case)
        run, rows = way(case), parts.rows()
        out = whole.run(run).unflatten(0, (len(case.lengths), -1))
        tokens, gates = (
            None if each is None else each.unflatten(0, (len(case.lengths), -1))
            for each in (parts.new_tokens(), parts.new_gates())
        )
        assert tokens is not None
        for t in range(case.width):
            row = replace(rows, base=rows.base + t, width=1)
            gate = None if gates is None else gates[:, t]
            if not torch.equal(run(tokens[:, t].clone(), parts.layer, row, parts.heads, gate), out[:, t]):
                return False
        return torch.equal(whole.cache.view(torch.uint8), parts.cache.view(torch.uint8))

    make_hostile(seed=4)
    results: dict[str, Any] = {}
    for case in CASES:
        inputs, exact = Inputs(case), Inputs(replace(case, cached=""))
        out = inputs.run(way(case))
        exact.run(way(case))
        rounded = narrowed(case.memory, exact.cache.float(), CACHED[case.cached])
        see_cache(inputs)
        results[str(case)] = {
            "error": float((out.float() - inputs.textbook()).abs().max()),
            "is_rounded": torch.equal(rounded.view(torch.uint8), inputs.cache.view(torch.uint8)),
            "is_same": case not in BITS or is_same(case),
        }
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
