"""The operations by slot on the CPU, with every mix of parameters, against plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from support.kernels.penalties import level_reference_, penalize_reference_, suppress_ends_reference_
from support.kernels.random_slots import DTYPES, random_logits, random_params, random_tokens, same_bits
from support.kernels.row_draws import RowDraws, top_p_after
from support.kernels.slots import pick_drafts
from support.products import rest_slow
from weft import _core
from weft.errors import InputError
from weft.ops.slots import (
    RECORD_WORDS,
    BiasKind,
    SlotParams,
    SlotRecord,
    advance_slots_,
    keep_logits_,
    pick_drafts_,
    sample_slots_,
)


def sample_slots_reference(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    params: SlotParams,
    temperatures: Tensor | None = None,
) -> Tensor:
    """`sample_slots_`, in place as that is."""
    width = inputs.shape[1]
    slot, base, inputs = (each.repeat_interleave(width, 0) for each in (slot, base, inputs))
    seen = torch.arange(width).repeat(len(logits) // width)
    is_padding = slot == len(params.records) - 1
    draws = RowDraws.of(params, slot, base + 1 + seen, temperatures, seen).after(
        params, slot, inputs[:, 1:], seen
    )
    penalize_reference_(logits, slot, params, base + 1, inputs[:, 1:], seen, temperature=draws.temperature)
    suppress_ends_reference_(logits, slot, params, base + 1 + seen)
    level_reference_(logits, slot, params)
    return draws.tokens(logits).where(~is_padding, -1)


def pick_drafts_reference(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    count: Tensor,
    drafts: Tensor,
    number: int,
    params: SlotParams,
    temperatures: Tensor | None = None,
    proposed: Tensor | None = None,
    d2t: Tensor | None = None,
) -> Tensor:
    """`pick_drafts_`, in place as that is."""
    is_padding = slot == len(params.records) - 1
    length = base + count + 2
    seen = torch.full_like(slot, number - 1)
    before = drafts[: number - 1].T[slot]
    draws = RowDraws.of(params, slot, length + seen, temperatures).after(params, slot, before, seen)
    penalize_reference_(logits, slot, params, length, before, seen, d2t, draws.temperature)
    level_reference_(logits, slot, params)
    token = draws.tokens(logits, d2t)
    if proposed is not None:
        token = proposed[number - 1, slot].where(proposed[number - 1, slot] >= 0, token)
    token = token.where((params.max_drafts[slot] >= number) & ~is_padding, -1)
    drafts[number - 1, slot[~is_padding]] = token[~is_padding]
    return token


def advance_slots_reference(
    sampled: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    count: Tensor,
    tokens: Tensor,
    slots: tuple[Tensor, ...],
    params: SlotParams,
    is_counted: bool = False,
) -> None:
    """`advance_slots_`, in place as that is."""
    verified, last_token, length, num_verified, drafts, verified_host = slots
    width = inputs.shape[1]
    for b, s in enumerate(slot.tolist()):
        if s == len(length) - 1:
            continue
        given, drawn = inputs[b, 1:].tolist(), sampled[b].tolist()
        accepted = next((k for k in range(width - 1) if given[k] != drawn[k]), width - 1)
        accepted = int(count[b]) if is_counted else accepted
        count[b], tokens[b] = accepted, sampled[b]
        for rows in (verified, verified_host):
            rows[s, 0], rows[s, 1 : width + 1] = (
                _core.HELD_SLOT if params.is_held[s] else accepted,
                sampled[b],
            )
        if params.is_held[s]:
            continue
        last_token[s] = drawn[accepted]
        length[s] = base[b] + accepted + 1
        if width > 1:
            num_verified[s] = next((k for k in range(width - 1) if given[k] < 0), width - 1)
        drafts[width - 1 :, s] = -1
        params.top_p[s] = top_p_after(float(params.top_p[s]), params, s, drawn[: accepted + 1])
        for t in range(accepted + 1 if params.changes_logits[s] else 0):
            at = int(base[b]) + 1 + t
            if 0 <= at < params.history.shape[1]:
                params.history[s, at] = drawn[t]
            if 0 <= drawn[t] < params.counts.shape[1]:
                params.counts[s, drawn[t]] += 1


SLOTS = 5
CPU = torch.device("cpu")


@dataclass
class Batch:
    """Some of the slots in any order, one of them twice, and one that there is not."""

    params: SlotParams
    slot: Tensor
    base: Tensor
    temperatures: Tensor


def batch(vocab: int, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    slot = torch.cat(
        (torch.randperm(SLOTS, generator=g)[:4], torch.randint(-1, SLOTS + 1, (2,), generator=g))
    )
    wanted = torch.rand(SLOTS, 4, generator=g)
    wanted[torch.rand(SLOTS, 4, generator=g) < 0.5] = -1
    base = torch.randint(
        0, 26, (6,), generator=g
    )  # what is drawn after it stands within the history, of 30 tokens
    return Batch(random_params(SLOTS, vocab, seed), slot, base, wanted)


def assert_sampled(vocab: int, known: int, width: int, dtype: torch.dtype, seed: int) -> None:
    b = batch(known, seed)
    inputs = random_tokens((6, width), known, seed)
    logits = random_logits(6 * width, vocab, dtype, seed)
    expected = logits.clone()
    wanted = b.temperatures if seed % 2 else None
    token = sample_slots_(logits, b.slot, b.base, inputs, b.params, wanted)
    sampled = sample_slots_reference(expected, b.slot, b.base, inputs, b.params, wanted)
    assert same_bits(logits, expected)
    slot, seen = b.slot.repeat_interleave(width), torch.arange(width).repeat(6)
    draws = RowDraws.of(b.params, slot, b.base.repeat_interleave(width) + 1 + seen, wanted, seen)
    draws.check_but_for_rounding(token, sampled, logits)


def assert_picked(vocab: int, known: int, number: int, dtype: torch.dtype, seed: int) -> None:
    b = batch(known, seed)
    slot = b.slot[:4]
    g = torch.Generator().manual_seed(seed)
    count = torch.randint(0, 4, (4,), generator=g)
    drafts, proposed = random_tokens((4, SLOTS), known, seed), random_tokens((4, SLOTS), known, seed + 1)
    logits = random_logits(4, vocab, dtype, seed)
    d2t = (
        None,
        torch.randperm(known, generator=g)[:vocab] - torch.arange(vocab),
        torch.randint(0, known + vocab, (vocab,), generator=g)
        - torch.arange(vocab),  # of anything, and twice
    )[seed % 3]
    others = (b.temperatures if seed % 2 else None, proposed if seed % 5 < 2 else None, d2t)
    expected, expected_drafts = logits.clone(), drafts.clone()
    drafts_host = torch.full_like(drafts, -7)
    token = pick_drafts(
        logits, slot, b.base[:4], count, drafts, number, b.params, *others, drafts_host=drafts_host
    )
    picked = pick_drafts_reference(
        expected, slot, b.base[:4], count, expected_drafts, number, b.params, *others
    )
    assert same_bits(logits, expected)
    draws = RowDraws.of(b.params, slot, b.base[:4] + count + 1 + number, others[0])
    draws.check_but_for_rounding(token, picked, logits, d2t)
    is_live = slot != SLOTS - 1
    assert (token[~is_live] == -1).all()
    assert torch.equal(drafts[number - 1, slot[is_live]], token[is_live])
    assert torch.equal(drafts_host[number - 1, slot[is_live]], token[is_live])
    assert int((drafts_host == -7).sum()) == drafts_host.numel() - int(is_live.sum())
    drafts[number - 1] = expected_drafts[number - 1] = 0
    assert torch.equal(drafts, expected_drafts)


@rest_slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 64, 65, 300, 4000])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_targets_tokens_are_the_references(vocab: int, dtype: torch.dtype, seed: int) -> None:
    assert_sampled(vocab, vocab, 3, dtype, seed)


@rest_slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 64, 65, 300, 4000])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_drafts_are_the_references(vocab: int, dtype: torch.dtype, number: int) -> None:
    for seed in range(6):
        assert_picked(vocab, 2 * vocab, number, dtype, seed)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 200), st.integers(1, 4))
def test_any_mix_is_the_references(seed: int, vocab: int, known: int, number: int) -> None:
    assert_sampled(vocab, known, number, DTYPES[seed % 3], seed)
    assert_picked(vocab, max(vocab, known), number, DTYPES[seed % 3], seed)


def advancing(width: int, max_drafts: int) -> tuple[Tensor, ...]:
    """verified, last_token, length, proposed, drafts and verified_host of the slots."""
    one, verified = torch.full((SLOTS,), -7), torch.full((SLOTS, max_drafts + 2), -7)
    return (
        verified, one, one.clone(), one.clone(), torch.full((max_drafts, SLOTS), -7), verified.clone(),
    )  # fmt: skip


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_slots_advance_as_the_references_do(width: int, is_counted: bool) -> None:
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        params = random_params(SLOTS, 3, seed)
        twin = SlotParams(*(each.clone() for each in params.tensors))
        rows = SLOTS - seed % 2
        inputs, sampled = (torch.randint(-1, high, (rows, width), generator=g) for high in (2, 4))
        sampled[::2, :-1] = inputs[::2, 1:]
        slot, base = torch.randperm(SLOTS, generator=g)[:rows], torch.randint(0, 30, (rows,), generator=g)
        outcomes = []
        for advance, asked in ((advance_slots_, params), (advance_slots_reference, twin)):
            count, tokens = torch.arange(rows) % width, torch.zeros(rows, width, dtype=torch.int64)
            slots = advancing(width, 4)
            advance(sampled, slot, base, inputs, count, tokens, slots, asked, is_counted)
            outcomes.append((count, tokens, *slots, asked.counts, asked.history))
        assert all(torch.equal(one, other) for one, other in zip(*outcomes, strict=True))


def test_logits_are_kept_for_the_slots_that_want_them() -> None:
    params = random_params(SLOTS, 8)
    params.wants_logprobs[:] = torch.tensor([0, 1, 0, 1, 1])
    slot = torch.tensor([4, 0, 3, 5, -1])
    for dtype in DTYPES:
        logits, kept = random_logits(10, 300, dtype), torch.full((10, 300), 7.0, dtype=dtype)
        expected = kept.clone()
        expected[[0, 1, 4, 5]] = logits[[0, 1, 4, 5]]
        keep_logits_(logits, kept, slot, params)
        assert same_bits(kept, expected)


def test_slots_that_ask_for_nothing_leave_logits_alone() -> None:
    params = random_params(SLOTS, 300)
    params.changes_logits[:], params.ends_allowed_from[:] = 0, 0
    logits = random_logits(10, 300)
    before, slot, base = logits.clone(), torch.arange(5), torch.full((5,), 7)
    sample_slots_(logits, slot, base, torch.zeros(5, 2, dtype=torch.int64), params)
    drafts = torch.zeros(2, SLOTS, dtype=torch.int64)
    pick_drafts(logits[:5], slot, base, torch.zeros_like(slot), drafts, 1, params)
    assert same_bits(logits, before)


def test_a_slot_out_of_bounds_asks_for_nothing() -> None:
    """Its logits stay as they are."""
    params = random_params(3, 50)
    params.changes_logits[:], params.bias_kind[:], params.ends_allowed_from[:] = 1, 1, 99
    logits = random_logits(4, 50)
    before = logits.clone()
    slot = torch.tensor([-1, 3, 0, 1])
    sample_slots_(logits, slot, torch.zeros_like(slot), slot.new_zeros(4, 1), params)
    assert torch.equal(logits[:2], before[:2]) and not torch.equal(logits[2:], before[2:])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(threads: int) -> None:
    params, logits = random_params(41, 6001), random_logits(40, 6001)
    slot, base = torch.arange(40), torch.arange(40) % 30
    inputs = torch.zeros(40, 1, dtype=torch.int64)
    alone = logits.clone()
    order = torch.randperm(40)
    shuffled = logits[order]
    tokens = [
        int(sample_slots_(alone[i : i + 1], slot[i : i + 1], base[i : i + 1], inputs[:1], params))
        for i in range(40)
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = sample_slots_(logits, slot, base, inputs, params)
        in_order = sample_slots_(shuffled, slot[order], base[order], inputs, params)
    finally:
        torch.set_num_threads(before)
    assert together.tolist() == tokens and torch.equal(in_order, together[order])
    assert same_bits(logits, alone) and same_bits(shuffled, alone[order])


def given_to_sample() -> dict[str, object]:
    two = torch.zeros(2, dtype=torch.int64)
    return {
        "logits": torch.zeros(4, 8),
        "slot": two,
        "base": two,
        "inputs": two[:, None].expand(2, 2).contiguous(),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(4, 8, dtype=torch.float64)}, "must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(4, 8, dtype=torch.int64)}, "must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(8)}, r"must be \[n, vocab\]"),
        ({"logits": torch.zeros(8, 4).T}, "last dimension of logits"),
        ({"logits": torch.empty(1, 2**23 + 1, dtype=torch.bfloat16).expand(4, -1)}, "at most 8388608"),
        ({"slot": torch.zeros(2, dtype=torch.int32)}, r"slot must be \[2\] int64"),
        ({"slot": torch.zeros(4, dtype=torch.int64)[::2]}, "slot must be contiguous"),
        ({"base": torch.zeros(3, dtype=torch.int64)}, r"base must be \[2\] int64 on cpu; got \[3\]"),
        ({"inputs": torch.zeros(2, 3, dtype=torch.int64)}, r"inputs must be \[2, T\] int64"),
        (
            {"inputs": torch.zeros(2, 4, dtype=torch.int64)[:, ::2]},
            r"inputs must be \[2, T\] int64, contiguous",
        ),
        ({"inputs": torch.zeros(2, 2)}, r"inputs must be \[2, T\] int64"),
    ],
)
def test_sampling_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sample_slots_(**(given_to_sample() | change), params=SlotParams.neutral(3, 8, 4, 2, 9, CPU))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(2, 8, dtype=torch.float64)}, "must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(8, 2).T}, "last dimension of logits"),
        ({"base": torch.zeros(2, dtype=torch.int32)}, r"base must be \[2\] int64"),
        ({"count": torch.zeros(3, dtype=torch.int64)}, r"count must be \[2\] int64"),
        ({"number": 4}, "draft number 4 is not one of 3"),
        ({"number": 0}, "draft number 0 is not one of 3"),
        ({"drafts": torch.zeros(3, 2, dtype=torch.int64)}, "drafts has 2 columns for 3 slots"),
        ({"d2t": torch.zeros(7, dtype=torch.int64)}, r"d2t must be \[8\] int64"),
        (
            {"proposed": torch.zeros(3, 2, dtype=torch.int64)},
            r"proposed must be as drafts, \[3, 3\] torch.int64",
        ),
        ({"drafts_host": torch.zeros(3, 3)}, r"drafts_host must be as drafts"),
        ({"out": torch.zeros(2)}, r"out must be \[2\] int64"),
        ({"out": torch.zeros(3, dtype=torch.int64)}, r"out must be \[2\] int64"),
    ],
)
def test_drafting_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    two, drafts = torch.zeros(2, dtype=torch.int64), torch.zeros(3, 3, dtype=torch.int64)
    given: dict[str, object] = {"logits": torch.zeros(2, 8), "slot": two, "base": two, "count": two}
    given["out"] = two.clone()
    with pytest.raises(InputError, match=message):
        pick_drafts_(
            **({**given, "drafts": drafts, "number": 1} | change),
            params=SlotParams.neutral(3, 8, 4, 2, 9, CPU),
        )


def test_advancing_says_what_is_wrong() -> None:
    params, slots = random_params(SLOTS, 8), advancing(2, 4)
    two, wide = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InputError, match="sampled and inputs must be contiguous"):
        advance_slots_(wide[:, ::2], two, two, wide[:, ::2], two, wide, slots, params)
    with pytest.raises(InputError, match="of one shape"):
        advance_slots_(wide, two, two, wide[:, :2].contiguous(), two, wide, slots, params)
    with pytest.raises(InputError, match=r"base must be \[2\] int64"):
        advance_slots_(wide, two, two.int(), wide, two, wide, slots, params)
    with pytest.raises(InputError, match="verified_host must be as verified"):
        advance_slots_(wide, two, two, wide, two, wide, (*slots[:5], slots[5][1:]), params)


def test_tables_have_the_shapes_that_they_say() -> None:
    params = SlotParams.neutral(3, 40, 7, 2, 9, CPU)
    shapes = [tuple(each.shape) for each in params.tensors]
    assert shapes == [(3, RECORD_WORDS), (3, 40), (3, 2), (3, 40), (3, 7), (3, 9), (3, 2)]
    assert [each.dtype for each in params.tensors] == [
        torch.int64, torch.int32, torch.int32, torch.float32, *[torch.int32] * 3,
    ]  # fmt: skip
    assert all(each.is_contiguous() for each in params.tensors)


def test_every_field_of_a_record_has_a_view_of_its_name() -> None:
    params = SlotParams.neutral(3, 40, 7, 2, 9, CPU)
    for number, name in enumerate(sorted(SlotRecord.fields())):
        record, view = SlotRecord(), getattr(params, name)
        assert view.tolist() == [getattr(record, name)] * 3
        value = BiasKind.WIDE if name == "bias_kind" else number + 2
        setattr(record, name, value)
        params.records[1] = torch.frombuffer(bytearray(bytes(record)), dtype=torch.int64)
        assert view.tolist() == [view[0], value, view[0]] and view[0] != value
        view[2] = value
        assert torch.equal(params.records[2], params.records[1])
        params.records[1:] = params.records[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_opaque_under_fake_cuda_tensors(dtype: torch.dtype) -> None:
    tables = SlotParams.neutral(3, 64, 4, 2, 9, CPU).tensors
    with FakeTensorMode():
        params = SlotParams(*(torch.zeros(t.shape, dtype=t.dtype, device="cuda") for t in tables))
        slot = torch.zeros(3, dtype=torch.int64, device="cuda")
        logits, inputs, drafts = (
            torch.zeros(6, 64, device="cuda", dtype=dtype), slot.new_zeros(3, 2), slot.new_zeros(2, 3),
        )  # fmt: skip
        token = sample_slots_(logits, slot, slot, inputs, params)
        assert (token.shape, token.dtype, token.device.type) == ((6,), torch.int64, "cuda")
        one_each = torch.zeros(3, 64, device="cuda", dtype=dtype)
        hosts = torch.zeros(2, 3, dtype=torch.int64)
        pick_drafts_(
            one_each, slot, slot, slot, drafts, 1, params, None, hosts,
            out=torch.empty_like(slot), drafts_host=hosts,
        )  # fmt: skip
        slots = (slot.new_zeros(3, 4), slot, slot, slot, drafts, torch.zeros(3, 4, dtype=torch.int64))
        advance_slots_(inputs, slot, slot, inputs, slot, inputs.clone(), slots, params)
        keep_logits_(logits, torch.zeros_like(logits), slot, params)
        with pytest.raises(InputError, match="slot must be"):
            sample_slots_(logits, slot.cpu(), slot, inputs, params)
