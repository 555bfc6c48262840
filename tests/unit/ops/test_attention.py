"""Attention over pages against textbook attention: the CPU's kernel, and Triton's through its interpreter.

Run as a script under TRITON_INTERPRET=1 this file checks the Triton kernels and prints what it found.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernels.attention import (
    ALL,
    FEW,
    GATED,
    MANY,
    MLA,
    OLMO,
    OTHER_FEW,
    OTHER_MANY,
    ROTATED_MLA,
    Attend,
    Case,
    Inputs,
    beyond,
    error,
)
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.ragged import CALLS, OTHER_CALLS, UNTOUCHED, RaggedInputs
from support.kernels.ragged import Call as RaggedCall
from weft.errors import InputError, InterfaceError
from weft.ops.attention import NO_WINDOW, Heads, KVLayer, Rows, Window, attend
from weft.ops.library import triton_kernels

ON_CPU = tuple(case for case in FEW + MANY + OTHER_FEW + OTHER_MANY if case.dtype == "float32")
BITS = (
    Case((150, 7, 66, 33), 4, shares=4),
    Case((90, 300), 3, heads=6, kv_heads=2, shares=8, norm=True),
    Case((150, 7, 66, 33), 4, shares=4, window=30),
    Case((90, 300, 181), 15, heads=6, kv_heads=2, shares=8, window=70, sinks=3),
)
OTHER_BITS = (
    replace(MLA, lengths=(90, 33), width=3, logits=True),
    Case((150, 33), 3, dim=24, value_dim=32, pairs=5, window=30, sinks=3, softcap=2.0, logits=True, shares=4),
    *(OLMO, GATED, ALL),
    Case((50, 17, 33), 17, heads=6, window=9),
    *(
        replace(ROTATED_MLA, width=17),
        replace(OLMO, width=19),
        replace(GATED, width=18),
        replace(ALL, width=20),
    ),
)
FEW_OTHER_BITS = tuple(case for case in OTHER_BITS if case.width <= 16)
EARLY = (FEW[2], FEW[4], FEW[7])


@pytest.mark.parametrize("case", ON_CPU, ids=str)
def test_cpu_attention_matches_the_textbook(case: Case) -> None:
    assert error(case, attend) < case.tolerance


def test_cases_cover_both_ways_of_the_cpu() -> None:
    assert {max(case.counts) > 16 for case in ON_CPU} == {True, False}


@pytest.mark.parametrize("window", [NO_WINDOW, Window(5), Window(9, 2)], ids=str)
@pytest.mark.parametrize("width", [2, 20])
def test_cpu_rows_do_not_write_beyond_their_table(width: int, window: Window) -> None:
    assert beyond(attend, width, window=window) == 0.0


@pytest.mark.parametrize(("size", "sinks"), [(-1, 0), (0, 1), (4, 4), (4, -1)])
def test_a_window_has_room_besides_its_sinks(size: int, sinks: int) -> None:
    with pytest.raises(ValueError, match=f"window of {size} keys"):
        Window(size, sinks)


@pytest.mark.parametrize("case", BITS + OTHER_BITS, ids=str)
def test_a_querys_bits_are_its_own_on_the_cpu(case: Case) -> None:
    assert bits_differ(case, lambda _: attend) == []


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("window", [(0, 0), (9, 0), (20, 3)], ids=str)
def test_all_arguments_combine_on_the_cpu(window: tuple[int, int], softcap: float, logits: bool) -> None:
    """Sizes, rotation and norms of every kind, for rows of few tokens and of many."""
    size, sinks = window
    sizes = ((24, 16, False), (24, 16, True), (17, 33, False), (40, 40, True))
    others = product(sizes, (0, 3, None), (False, True), (3, 17))
    for number, ((dim, value_dim, in_keys), pairs, norm, width) in enumerate(others):
        case = Case(
            (50, 17, 33), width, heads=6, dim=dim, value_dim=value_dim, in_keys=in_keys, pairs=pairs, norm=norm,
            window=size, sinks=sinks, softcap=softcap, logits=logits, page=8, first=2 if pairs == 3 else 0,
            joint=norm and number % 2 == 0, gated=number % 3 == 0, apart=number % 5 < 2,
        )  # fmt: skip
        assert error(case, attend) < case.tolerance, case
        assert bits_differ(case, lambda _: attend) == [], case


def test_large_sink_logits_and_scores_leave_nothing_undefined() -> None:
    """A sink may be far above or below all scores, and scores far above a soft cap."""
    inputs = Inputs(Case((40, 60), 2, logits=True))
    logits = inputs.heads.sink_logits
    assert logits is not None
    logits.copy_(torch.tensor([1e4, -1e4, 200.0, -200.0]))
    out = inputs.run(attend).view(4, 4, 16)
    torch.testing.assert_close(out.flatten(1), inputs.textbook(), atol=2e-5, rtol=0)
    assert out[:, (0, 2)].abs().max() < 1e-30 and out[:, (1, 3)].abs().max() > 0.1
    inputs = Inputs(Case((40, 60), 2, softcap=2.0))
    inputs.heads = replace(inputs.heads, scale=1e4)
    torch.testing.assert_close(inputs.run(attend), inputs.textbook(), atol=2e-4, rtol=0)


@pytest.mark.parametrize("case", [Case((20,), 2), Case((20,), 2, value_dim=8, in_keys=True)], ids=str)
def test_tokens_of_another_width_are_refused(case: Case) -> None:
    inputs = Inputs(case)
    width = inputs.qkv.shape[2]
    with pytest.raises(TypeError, match=f"has {width} elements, not {width + 8}"):
        attend(torch.zeros(2, width + 8), inputs.layer, inputs.rows(), inputs.heads)


def test_tables_and_logits_of_other_sizes_are_refused() -> None:
    inputs = Inputs(Case((20,), 2))
    heads = replace(inputs.heads, rotary=torch.zeros(20, 9, 2))
    with pytest.raises(TypeError, match="rotary has 9 pairs, but a key has 16 elements"):
        attend(inputs.new_tokens(), inputs.layer, inputs.rows(), heads)
    heads = replace(heads, rotary=torch.zeros(20, 4, 2), first_rotated=10)
    with pytest.raises(TypeError, match="rotary has 4 pairs, but a key has 6 elements after 10"):
        attend(inputs.new_tokens(), inputs.layer, inputs.rows(), heads)
    for logits in (torch.zeros(5), torch.zeros(4, dtype=torch.float16)):
        with pytest.raises(TypeError, match=r"sink_logits is float32 \[4\], not torch.float"):
            replace(heads, sink_logits=logits)


@pytest.mark.parametrize(
    "call", [call for call in CALLS + OTHER_CALLS if call.texts.dtype == "float32"], ids=str
)
def test_ragged_rows_have_the_bits_of_separate_calls_on_the_cpu(call: RaggedCall) -> None:
    ragged, separate = RaggedInputs(call), RaggedInputs(call)
    run_ragged(ragged)
    assert ragged.error() < call.texts.tolerance and ragged.is_padding_untouched()
    # Long rows first, because a short row may read what a long one writes.
    for b in sorted(range(len(separate.pieces)), key=lambda b: b < len(call.short)):
        begin, end = separate.starts[b : b + 2].tolist()
        if separate.pieces[b].text is None or begin == end:
            continue
        rows = Rows(separate.page_table[b : b + 1], separate.base[b : b + 1], end - begin)
        texts, gates = separate.texts, separate.gates
        gate = None if gates is None else gates[begin:end]
        separate.out[begin:end] = attend(separate.qkv[begin:end], texts.layer, rows, texts.heads, gate)
    assert torch.equal(ragged.out, separate.out)
    assert torch.equal(ragged.texts.cache.nan_to_num(), separate.texts.cache.nan_to_num())


@pytest.mark.parametrize("width", [3, 20])
def test_rows_that_pad_a_batch_give_zeros_on_the_cpu(width: int) -> None:
    inputs = Inputs(Case((40, 60), width))
    inputs.page_table[0] = 0
    qkv, out = inputs.new_tokens(), torch.full((2 * width, 64), UNTOUCHED)
    qkv[:width] = float("nan")
    before, rows, heads = inputs.cache[0].clone(), inputs.rows(), inputs.heads
    torch.ops.weft.attend(
        qkv, inputs.layer.keys, inputs.layer.values, rows.page_table, rows.base, None, None, width, 0, False, 0, 0,
        heads.rotary, None, None, 0.0, heads.count, heads.scale, 0.0, None, 0, 0, out,
    )  # fmt: skip
    assert not out[:width].any() and not out[width:].isnan().any()
    assert torch.equal(inputs.cache[0].nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("first", [-2, 3])
def test_the_first_rotated_dimension_is_even(first: int) -> None:
    with pytest.raises(ValueError, match=f"is even, not {first}"):
        Heads(4, None, 1.0, first_rotated=first)


def test_gates_and_norms_of_other_sizes_are_refused() -> None:
    inputs = Inputs(Case((20,), 2))
    with pytest.raises(TypeError, match=r"gate is \[2, 64\] for these heads, not \[2, 4\]"):
        attend(inputs.new_tokens(), inputs.layer, inputs.rows(), inputs.heads, torch.zeros(2, 4))
    heads = replace(inputs.heads, norms=(torch.ones(64), torch.ones(64)))
    with pytest.raises(TypeError, match=r"a norm of 2 heads has 16 or 32 weights, not \[64\]"):
        attend(inputs.new_tokens(), inputs.layer, inputs.rows(), heads)
    with pytest.raises(InputError, match="elements of a token of qkv and gate must be contiguous"):
        attend(inputs.new_tokens().t().contiguous().t(), inputs.layer, inputs.rows(), inputs.heads)


def test_the_number_of_live_tokens_is_one_integer() -> None:
    table, base = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    Rows(table, base, 1, live=base[:1])
    with pytest.raises(TypeError, match=r"live are int64, here \[1\]"):
        Rows(table, base, 1, live=base)


def run_ragged(inputs: RaggedInputs) -> None:
    """Attend by one call, on the CPU."""
    call, layer, heads = inputs.call, inputs.texts.layer, inputs.texts.heads
    q_norm, k_norm = heads.norms or (None, None)
    torch.ops.weft.attend(
        inputs.qkv, layer.keys, layer.values, inputs.page_table, inputs.base, None, inputs.starts, call.width, 0,
        False, len(call.short), call.short_width, heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale,
        heads.softcap, heads.sink_logits, layer.window.size, layer.window.sinks, inputs.out, heads.first_rotated,
        inputs.gates,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The results of the Triton kernels, from two interpreter processes."""
    return interpreted(__file__, "usual") | interpreted(__file__, "other")


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", FEW + MANY + OTHER_FEW + OTHER_MANY, ids=str)
def test_triton_attention_matches_the_textbook(case: Case, found: dict[str, Any]) -> None:
    assert found[str(case)] < case.tolerance


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", FEW + OTHER_FEW, ids=str)
def test_rows_of_few_tokens_may_go_the_way_of_many(case: Case, found: dict[str, Any]) -> None:
    assert found[f"long {case}"] < case.tolerance


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("width", [2, 20])
def test_triton_rows_do_not_write_beyond_their_table(width: int, found: dict[str, Any]) -> None:
    assert found[f"beyond {width}"] == found["beyond in a window"] == 0.0


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", BITS + FEW_OTHER_BITS, ids=str)
def test_a_querys_bits_are_its_own_in_triton(case: Case, found: dict[str, Any]) -> None:
    """Again, in other company, at other places, alone, and read token by token."""
    assert found[f"bits {case}"] == []


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("case", EARLY, ids=str)
def test_old_keys_that_are_read_early_give_the_same_bits(case: Case, found: dict[str, Any]) -> None:
    """Of new keys nothing is read early: their memory is NaN before, here and in every other case."""
    assert found[f"early {case}"]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("width", [3, 20])
def test_rows_that_pad_a_batch_are_skipped_in_triton(width: int, found: dict[str, Any]) -> None:
    assert found[f"padding {width}"]


@pytest.mark.slow
@needs_triton
def test_positions_are_base_count_and_offset(found: dict[str, Any]) -> None:
    assert found["positions few"] and found["positions long"]


def test_cuda_without_triton_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("attention_triton", "triton_launch"):
        monkeypatch.delitem(sys.modules, f"weft.ops.{name}", raising=False)
    triton_kernels.cache_clear()
    with pytest.raises(InterfaceError, match="pip install triton"):
        triton_kernels("attention_triton")


@needs_triton
def test_shares_fill_the_gpu_and_stay_long() -> None:
    from weft.ops.attention_triton import choose_shares

    assert choose_shares(8, 131072, 64) == 16
    assert choose_shares(2, 131072, 64) == 32
    assert choose_shares(8, 256, 64) == 4
    assert choose_shares(8, 16, 64) == 1
    assert choose_shares(200, 131072, 64) == 1


def bits_differ(case: Case, with_shares: Any) -> list[str]:
    """In which company the same query has other bits. `with_shares` gives the attention with so many shares."""
    run: Attend = with_shares(case.shares)
    width, batch = case.width, len(case.lengths)

    def part(inputs: Inputs, rows: list[int], start: int = 0, count: int = width) -> Tensor:
        """Tokens start..start+count-1 of some rows, [rows, count, H * D]."""
        base = torch.tensor([case.lengths[r] - width + start for r in rows])
        new, gates = (
            None
            if all_new is None
            else all_new.unflatten(0, (batch, width))[rows, start : start + count].flatten(0, 1)
            for all_new in (inputs.new_tokens(), inputs.new_gates())
        )
        assert new is not None
        table = inputs.page_table[rows].contiguous()
        out = run(new, inputs.layer, Rows(table, base, count), inputs.heads, gates)
        return out.unflatten(0, (len(rows), count))

    whole = part(Inputs(case), list(range(batch)))
    turned = list(range(batch))[::-1]
    singly = Inputs(case)
    others = {
        "again": part(Inputs(case), list(range(batch))),
        "turned": part(Inputs(case), turned)[turned],
        "alone": torch.cat([part(Inputs(case), [r]) for r in range(batch)]),
        "token by token": torch.cat([part(singly, list(range(batch)), t, 1) for t in range(width)], 1),
    }
    return [name for name, other in others.items() if not torch.equal(other, whole)]


def interpret(kinds: str) -> dict[str, Any]:
    """Every case of usual or other attention through the kernels."""
    from weft.ops.attention_triton import Call, attend_few, attend_long

    def call_of(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads, gate: Tensor | None) -> Call:
        out = qkv.new_empty(qkv.shape[0], heads.count * layer.values.shape[3])
        q_norm, k_norm = heads.norms or (None, None)
        return Call(
            qkv, layer.keys, layer.values, rows.page_table, rows.base, rows.count, rows.starts, rows.width,
            rows.offset, rows.settled, 0, 0, heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale,
            heads.softcap, heads.sink_logits, layer.window.size, layer.window.sinks, out, heads.first_rotated, gate,
        )  # fmt: skip

    def few(shares: int | None, settled: bool = True) -> Attend:
        def run(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads, gate: Tensor | None) -> Tensor:
            call = call_of(qkv, layer, replace(rows, settled=settled), heads, gate)
            attend_few(call, len(rows.base), shares)
            return call.out

        return run

    def long(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads, gate: Tensor | None) -> Tensor:
        call = call_of(qkv, layer, rows, heads, gate)
        attend_long(call)
        return call.out

    def early(case: Case) -> bool:
        """Whether attention that may read old keys early has the bits of one that may not."""
        return torch.equal(
            Inputs(case).run(few(case.shares)), Inputs(case).run(few(case.shares, settled=False))
        )

    def skips_padding(run: Attend, width: int) -> bool:
        """Whether a row without pages is skipped. Its output memory is NaN before, and stays so."""
        inputs = Inputs(Case((40, 60), width))
        inputs.page_table[0] = 0
        out = inputs.run(run)
        return bool(out[:width].isnan().all()) and not out[width:].isnan().any()

    def positions(run: Attend) -> bool:
        inputs, other = Inputs(FEW[2]), Inputs(FEW[2])
        rows = inputs.rows()
        base, count = rows.base - torch.tensor([5, 2, 9]), torch.tensor([3, 0, 7])
        moved = replace(rows, base=base, count=count, offset=2)
        got = run(inputs.new_tokens(), inputs.layer, moved, inputs.heads, None)
        return torch.equal(got, other.run(run)) and torch.equal(inputs.cache.isnan(), other.cache.isnan())

    make_hostile(seed=5)
    if kinds == "other":
        others: dict[str, Any] = {str(case): error(case, few(case.shares)) for case in OTHER_FEW}
        others |= {f"long {case}": error(case, long) for case in OTHER_FEW}
        others |= {f"bits {case}": bits_differ(case, few) for case in FEW_OTHER_BITS}
        return others | {str(case): error(case, long) for case in OTHER_MANY}
    results: dict[str, Any] = {str(case): error(case, few(case.shares)) for case in FEW}
    results |= {f"early {case}": early(case) for case in EARLY}
    results |= {f"long {case}": error(case, long) for case in FEW}
    results |= {str(case): error(case, long) for case in MANY}
    results |= {"beyond 2": beyond(few(2), 2), "beyond 20": beyond(long, 20)}
    results |= {"padding 3": skips_padding(few(2), 3), "padding 20": skips_padding(long, 20)}
    narrow = Window(9, 2)
    results["beyond in a window"] = beyond(few(2), 2, window=narrow) + beyond(long, 20, window=narrow)
    results |= {f"bits {case}": bits_differ(case, few) for case in BITS}
    return results | {"positions few": positions(few(2)), "positions long": positions(long)}


if __name__ == "__main__":
    print(json.dumps(interpret(sys.argv[1])))
