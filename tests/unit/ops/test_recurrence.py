"""Layers that keep a state by slot: the CPU's kernels over random traces, and Triton's through its interpreter.

Run as a script under TRITON_INTERPRET=1 this file checks the Triton kernels and prints the results.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.captured import Captured, labels
from support.kernels.interpreter import interpreted, make_hostile, needs_triton
from support.kernels.recurrence import KINDS, NAN, Kind, Layer, Machine, Piece, Trace
from weft.errors import InputError
from weft.models.memory import Convolution, LayerMemory, Recurrence, State
from weft.models.states import States, slot_bytes, snapshot_bytes
from weft.ops.attention import Rows
from weft.ops.recurrence import DeltaGates, convolve, recur
from weft.ops.state_rows import StateRows
from weft.runtime.recorder import PYTHON

TOLERANCE = 2e-5
KIND = KINDS[0]
EVERYTHING = {"begun", "loaded", "settled", "forked", "saved", "accepted", "refused"}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_texts_bits_are_its_own(kind: Kind) -> None:
    """Whatever the cuts, the drafts, what was refused, saved, loaded and forked, and the company."""
    done: Counter[str] = Counter()
    for seed in range(6):
        trace = Trace(Machine(Layer(kind), num_snapshots=3), seed).run(20)
        assert trace.wrong == []
        assert trace.error < TOLERANCE
        done += trace.done
    assert set(done) == EVERYTHING


def test_a_trace_notices_a_state_of_another_position() -> None:
    trace = Trace(Machine(Layer(KIND)), 0).run(5)
    trace.machine.states.owed.add_(1)
    assert trace.run(3).wrong


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("num_speculative", [0, 3])
def test_rows_of_the_same_width(kind: Kind, num_speculative: int) -> None:
    layer = Layer(kind)
    assert has_rows_of_the_same_width(layer, num_speculative)
    pieces = [Piece(layer.draw(5, torch.Generator()) * NAN), Piece(layer.draw(5, torch.Generator()), 1)]
    given = (pieces, []) if num_speculative else ([], pieces)
    assert not Machine(layer).call(*given, ragged=False)[0].any(), "a row that pads gives zeros"


def has_rows_of_the_same_width(layer: Layer, num_speculative: int) -> bool:
    """Whether rows of a call without `starts` have the bits of their texts."""
    generator = torch.Generator().manual_seed(0)
    machine = Machine(layer)
    pieces = [Piece(layer.draw(5, generator), slot) for slot in (2, None, 0)]
    pieces[1].inputs.fill_(NAN)
    given = (pieces, []) if num_speculative else ([], pieces)
    outputs = machine.call(*given, ragged=False)
    return all(
        piece.slot is None or torch.equal(output, machine.whole(piece.inputs))
        for piece, output in zip(pieces, outputs, strict=True)
    )


def test_drafts_beyond_those_that_are_kept_have_outputs() -> None:
    layer, generator = Layer(KIND), torch.Generator().manual_seed(0)
    machine, inputs = Machine(layer, max_drafts=2), layer.draw(9, generator)
    whole = machine.whole(inputs)
    assert torch.equal(machine.call([Piece(inputs, 1)])[0], whole)
    machine.states.owed[1] = 2
    assert torch.equal(machine.call([Piece(inputs[3:], 1, 3)])[0], whole[3:])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_beams_read_their_parents_rows(kind: Kind) -> None:
    """Each beam of an iteration goes on from any beam of the iteration before."""
    search(kind, 12)


def search(kind: Kind, num_calls: int) -> None:
    """Run random beams, and check each output."""
    layer, generator, chooser = Layer(kind), torch.Generator().manual_seed(0), random.Random(0)
    machine, slots, width = Machine(layer, num_slots=6, has_beams=True), [1, 4, 2], 3
    prompt, other = layer.draw(7, generator), layer.draw(40, generator)
    machine.states.open(machine.integers(1, 5))
    machine.call([Piece(other[:3], 5)], [Piece(prompt[:4], 1)])
    machine.call([Piece(other[1:2], 5, 1)], [Piece(prompt[4:], 1, 4)])
    texts, parents = [prompt] * width, [0] * width
    for number in range(num_calls):
        before = machine.states.source.clone(), machine.states.target.clone()
        machine.states.branch(
            machine.integers(*slots, machine.num_slots), machine.integers(*(slots[p] for p in parents), 0)
        )
        assert not set(machine.states.target[slots].tolist()) & set(machine.states.source[slots].tolist())
        unchanged = [slot for slot in range(6) if slot not in slots]
        after = machine.states.source, machine.states.target
        assert all(torch.equal(a[unchanged], b[unchanged]) for a, b in zip(before, after, strict=True))
        texts = [torch.cat((texts[parent], layer.draw(1, generator))) for parent in parents]
        pieces = [Piece(text[-1:], slot, len(text) - 1) for text, slot in zip(texts, slots, strict=True)]
        of_other = Piece(other[number + 2 : number + 3], 5, number + 2)
        outputs = machine.call([*pieces, of_other])
        for text, output in zip([*texts, other[: number + 3]], outputs, strict=True):
            assert torch.equal(output, machine.whole(text)[-1:])
        parents = [chooser.randrange(width) for _ in range(width)]
    # A slot of the search serves another text, and one is stored.
    last = machine.integers(4), machine.integers(0), machine.integers(0)
    machine.states.settle(*last)
    machine.states.open(machine.integers(0, 4))
    again = layer.draw(1, generator)
    new = layer.draw(3, generator)
    outputs = machine.call([Piece(again, 0, len(texts[1])), Piece(new, 4)])
    assert torch.equal(outputs[0], machine.whole(torch.cat((texts[1], again)))[-1:])
    machine.states.owed[4] = 2
    outputs = machine.call([Piece(again, 4, 3)])
    assert torch.equal(outputs[0], machine.whole(torch.cat((new, again)))[-1:])


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gates_are_those_of_transformers(scale: float) -> None:
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    generator = torch.Generator().manual_seed(1)
    key_heads, heads, key_size, value_size, num_tokens = 2, 6, 32, 24, 60
    memory = LayerMemory(
        state=State((), (Recurrence(heads, key_heads, key_size, value_size, is_delta=True),))
    )
    states = States([memory], 1, 0, 0, False, "cpu")
    layer = states.layers[0]
    assert layer is not None
    row = torch.randn(num_tokens, 2 * key_heads * key_size + heads * (value_size + 2), generator=generator)
    q, k, v, a, b = row.split(
        [key_heads * key_size, key_heads * key_size, heads * value_size, heads, heads], 1
    )
    q, k, v = q.unflatten(1, (key_heads, -1)), k.unflatten(1, (key_heads, -1)), v.unflatten(1, (heads, -1))
    a *= scale  # to both ends of softplus and sigmoid
    b *= scale
    rates, bias = torch.rand(heads, generator=generator) * 16, torch.randn(heads, generator=generator)
    g = -rates * F.softplus(a + bias)
    expected, _ = torch_recurrent_gated_delta_rule(
        q[None], k[None], v[None], g=g[None], beta=b.sigmoid()[None], use_qk_l2norm_in_kernel=True
    )
    table, base = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    rows = Rows(table, base, num_tokens, states=states.rows(base, 0))
    actual = recur(q, k, v, a, b, layer.recurrences[0], rows, gates=DeltaGates(rates, bias))
    torch.testing.assert_close(actual, expected[0], rtol=1e-5, atol=2e-6)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same values, and NaN at the same places."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


LARGE = Kind("large", (Convolution(3000, 4),), Recurrence(8, 4, 64, 96, is_delta=True))


def test_bits_do_not_depend_on_threads() -> None:
    layer, generator = Layer(LARGE), torch.Generator().manual_seed(0)
    inputs = [layer.draw(60, generator) for _ in range(4)]
    num_threads, runs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            machine = Machine(layer)
            outputs = machine.call(parts=[Piece(x[:40], slot) for slot, x in enumerate(inputs)])
            outputs += machine.call([Piece(x[40:45], slot, 40) for slot, x in enumerate(inputs)])
            machine.states.owed.fill_(3)
            outputs += machine.call([Piece(x[44:49], slot, 44) for slot, x in enumerate(inputs)])
            runs.append((torch.cat(outputs), machine.states.storage[:4], machine.states.drafts[:4]))
    finally:
        torch.set_num_threads(num_threads)
    for other in runs[1:]:
        assert all(same(a, b) for a, b in zip(runs[0], other, strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_capture_gives_the_bits_of_eager_calls(kind: Kind) -> None:
    """Of calls and of moves, with other values at each replay. Nothing of it calls Python."""
    layer, generator = Layer(kind), torch.Generator().manual_seed(0)
    eager, captured = (Machine(layer, num_snapshots=2, has_beams=True) for _ in range(2))
    draws = [
        ([Piece(layer.draw(2, generator), 1)], [Piece(layer.draw(3, generator), 0)]),
        ([Piece(layer.draw(1, generator), 1, 2)], [Piece(layer.draw(4, generator), 0, 3)]),
        ([Piece(layer.draw(5, generator), 0, 7)], [Piece(layer.draw(0, generator))]),
    ]
    inputs = layer.draw(9, generator)
    rows = captured.rows(*draws[0])
    states = rows.states
    assert (
        states is not None and rows.starts is not None and rows.count is not None and states.saves is not None
    )
    slots, counts = torch.tensor([0, 4]), torch.tensor([1, 4])
    others, snapshots = torch.tensor([2, 4]), torch.tensor([1, 0]) + eager.states.first_snapshot
    out = captured.layer.run(inputs, captured.of_layer, rows)
    captured.forget(0), captured.forget(1)

    def run() -> None:
        out.copy_(layer.run(inputs, captured.of_layer, rows))

    def move(states: States = captured.states) -> None:
        states.settle(slots, snapshots, counts)
        states.load(snapshots, others)
        states.open(slots)
        states.branch(others, slots)

    assert not [label for label in labels(run, move) if label.startswith(PYTHON)]
    calls, moved = Captured(run), Captured(move)
    for number, (speculative, parts) in enumerate(draws):
        wanted = torch.cat(eager.call(speculative, parts))
        now = captured.rows(speculative, parts)
        assert now.states is not None and now.starts is not None and now.count is not None
        assert now.states.saves is not None
        inputs[: len(wanted)] = torch.cat([piece.inputs for piece in (*speculative, *parts)])
        rows.base.copy_(now.base), rows.count.copy_(now.count), rows.starts.copy_(now.starts)
        states.slots.copy_(now.states.slots), states.saves.copy_(now.states.saves)
        calls.replay()
        assert torch.equal(out[: len(wanted)], wanted), number
        for machine in (eager, captured):
            machine.states.owed[1] = min(number, 1)
    moved.replay()
    move(eager.states)
    for name in ("storage", "drafts", "source", "target", "owed"):
        a, b = getattr(eager.states, name), getattr(captured.states, name)
        assert same(a, b), name


@pytest.mark.parametrize("has_beams", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bytes_are_known_before_the_allocation(kind: Kind, has_beams: bool) -> None:
    memories = (LayerMemory(), kind.memory, KINDS[3].memory)
    states = States(memories, 5, 3, 7, has_beams, "cpu")
    allocated = 4 * (states.storage.numel() + states.drafts.numel())
    wanted = 6 * slot_bytes(memories, 7, has_beams) + 3 * snapshot_bytes(memories)
    assert wanted == allocated
    assert states.layers[0] is None and states.first_snapshot == (12 if has_beams else 6)


def test_a_model_without_states_needs_no_bytes() -> None:
    assert slot_bytes((LayerMemory(), LayerMemory()), 5, True) == snapshot_bytes(()) == 0


def one_row(states: States) -> Rows:
    table, base = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    return Rows(table, base, 2, states=states.rows(base, 0))


def test_wrong_arguments_are_named() -> None:
    recurrence = Recurrence(4, 2, 8, 16)
    memory = LayerMemory(state=State((Convolution(6, 4),), (recurrence,)))
    states = States([memory], 2, 0, 0, False, "cpu")
    layer, rows = states.layers[0], one_row(states)
    assert layer is not None
    q, v, decay = torch.randn(2, 2, 8), torch.randn(2, 4, 16), torch.rand(2, 4)
    cache = layer.recurrences[0]
    recur(q, q, v, decay, None, cache, rows)
    with pytest.raises(
        InputError, match=r"q is float32 \[2, 2, 8\], and contiguous within a token; got .* \[2, 1, 8\]"
    ):
        recur(q[:, :1], q[:, :1], v, decay, None, cache, rows)
    with pytest.raises(InputError, match=r"k is float32 .* with strides \[16, 1, 2\]"):
        recur(q, torch.randn(2, 8, 2).transpose(1, 2), v, decay, None, cache, rows)
    with pytest.raises(InputError, match=r"decay is float32 \[2, 4\]"):
        recur(q, q, v, decay[:, :, None].expand(2, 4, 8), None, cache, rows)
    with pytest.raises(InputError, match=r"v is float32 .* got torch.float16"):
        recur(q, q, v.half(), decay, None, cache, rows)
    with pytest.raises(InputError, match=r"beta is float32 \[2, 4\]"):
        recur(q, q, v, decay, decay[:1], cache, rows)
    with pytest.raises(InputError, match="no delta rule"):
        recur(q, q, v, decay, decay, cache, rows, torch.randn(4, 8, 16))
    gates = DeltaGates(torch.rand(4), torch.rand(4))
    with pytest.raises(InputError, match="gates are those of a delta rule"):
        recur(q, q, v, decay, None, cache, rows, gates=gates)
    for wrong in (gates.bias[:3], gates.bias.double(), torch.rand(8)[::2]):
        with pytest.raises(InputError, match=r"rates and bias of gates are float32 \[4\]"):
            recur(q, q, v, decay, decay, cache, rows, gates=DeltaGates(gates.rates, wrong))
    with pytest.raises(InputError, match=r"weight is float32 \[6, 4\]"):
        convolve(torch.randn(2, 6), torch.randn(6, 3), None, layer.convolutions[0], rows, False)
    with pytest.raises(InputError, match="needs rows with `states`"):
        recur(q, q, v, decay, None, cache, Rows(rows.page_table, rows.base, 2))
    with pytest.raises(TypeError, match=r"here \[3\], not torch.int64 \[2\]"):
        StateRows(rows.base, states.source[:2], states.target, states.owed, 0)


IN_TRITON = (*KINDS[:3], KINDS[4], KINDS[-1])


@pytest.fixture(scope="module")
def in_triton() -> dict[str, Any]:
    """The results of the Triton kernels, from one interpreter process."""
    return interpreted(__file__)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("kind", IN_TRITON, ids=str)
def test_a_texts_bits_are_its_own_in_triton(kind: Kind, in_triton: dict[str, Any]) -> None:
    assert in_triton[kind.name]["wrong"] == []
    assert in_triton[kind.name]["done"] >= 6


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_triton_matches_the_textbook(kind: Kind, in_triton: dict[str, Any]) -> None:
    assert in_triton[f"textbook {kind}"] < TOLERANCE
    assert in_triton[f"float16 {kind}"] < 2**-10


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("kind", IN_TRITON, ids=str)
def test_rows_of_the_same_width_in_triton(kind: Kind, in_triton: dict[str, Any]) -> None:
    assert in_triton[f"same width {kind}"]


@pytest.mark.slow
@needs_triton
def test_beams_read_their_parents_rows_in_triton(in_triton: dict[str, Any]) -> None:
    assert in_triton["beams"] == "right"


def interpret() -> dict[str, Any]:
    """What the Triton kernels give, by test."""
    from weft.ops import recurrence, recurrence_triton

    make_hostile(seed=5)
    for name in ("convolve", "recur", "settle_window", "settle_recurrence"):
        setattr(recurrence, f"_{name.upper()}", getattr(recurrence_triton, name))
    for name in ("open", "load", "branch"):
        setattr(recurrence, f"_{name.upper()}", getattr(recurrence, f"_{name}_cuda"))
    generator = torch.Generator().manual_seed(0)
    results: dict[str, Any] = {}
    for kind in KINDS:
        for name, dtype in (("textbook", torch.float32), ("float16", torch.float16)):
            layer = Layer(kind, dtype)
            inputs = layer.draw(9, generator)
            wanted = layer.textbook(inputs)
            off = (Machine(layer).whole(inputs).double() - wanted).abs() / (1 + wanted.abs())
            results[f"{name} {kind}"] = float(off.max())
    for kind in IN_TRITON:
        layer = Layer(kind)
        trace = Trace(Machine(layer, num_slots=3, num_snapshots=3, max_drafts=3), 1, share=0.2).run(9)
        results[kind.name] = {"wrong": trace.wrong, "done": len(trace.done)}
        results[f"same width {kind}"] = all(has_rows_of_the_same_width(layer, n) for n in (0, 3))
    search(KINDS[-1], 4)
    results["beams"] = "right"
    return results


if __name__ == "__main__":
    print(json.dumps(interpret()))
