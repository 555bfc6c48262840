"""Mixtures of experts on the CPU: the values of one product after another, and a row's bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from support.activations import DTYPES, KINDS, Kind
from support.captured import Captured
from support.experts import layer_of, routed
from support.products import rest_slow
from support.quantized import random_blocks
from weft.errors import InputError
from weft.ops.activation import Activation, Function
from weft.ops.experts import Experts
from weft.ops.formats import Activations, Format

TOLERANCES = {Activations.FLOAT32: 2e-5, Activations.TWO_BFLOAT16: 1e-4, Activations.BFLOAT16: 2e-2}
"""The largest errors, by how products round their input rows. In bfloat16, a few numbers of the second product's rows,
which are results of the first, are near the middle of two, and become the other one. Most results are as near as those
of float32 (`close`)."""

SILU = Activation(Function.SILU)
CLAMPED = Activation(Function.SILU, slope=1.702, limit=1.5, shift=1.0)
ROWS = (1, 8, 33, 200)


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)
    assert (actual - expected).abs().median() < 1e-4


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("experts", "chosen", "inner", "hidden"),
    [(4, 2, 40, 72), (8, 2, 200, 96), (16, 4, 64, 64), (64, 8, 65, 31), (1, 1, 1, 2)],
)
def test_values_are_those_of_one_product_after_another(
    experts: int, chosen: int, inner: int, hidden: int, has_bias: bool, kind: Kind
) -> None:
    dtype, activations = kind
    layer = layer_of(experts, inner, hidden, SILU, dtype, has_bias=has_bias)
    packed = layer.packed(activations)
    for rows in ROWS:
        x, index, weights = routed(rows, experts, chosen, hidden)
        spaced = torch.cat((x, x), 1)[:, :hidden]  # rows any distance apart
        expected = layer(x, index, weights, activations)
        close(packed(spaced, index, weights), expected, TOLERANCES[activations])


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "activation",
    [
        *(Activation(function) for function in Function),
        Activation(Function.SILU, slope=1.702),
        Activation(Function.GELU, limit=0.5),
        CLAMPED,
    ],
    ids=lambda activation: f"{activation.function.name.lower()}-{activation.limit}-{activation.slope}",
)
def test_every_activation_with_gates_and_without(activation: Activation, gated: bool, kind: Kind) -> None:
    dtype, activations = kind
    layer = layer_of(6, 70, 48, activation, dtype, gated=gated, has_bias=True)
    x, index, weights = routed(20, 6, 3, 48)
    x[0] *= 30  # far into the ends of the activations
    expected = layer(x, index, weights, activations)
    actual = layer.packed(activations)(x, index, weights)
    scale = expected.abs().amax(1, keepdim=True).clamp(min=1)
    close(actual / scale, expected / scale, TOLERANCES[activations])


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("experts", "chosen"), [(4, 2), (64, 8)])
def test_a_rows_bits_are_its_own(threads: int, experts: int, chosen: int, kind: Kind) -> None:
    dtype, activations = kind
    packed = layer_of(experts, 100, 96, CLAMPED, dtype, has_bias=True).packed(activations)
    x, index, weights = routed(700, experts, chosen, 96)  # more than a chunk of the kernel
    alone = torch.cat([packed(x[n, None], index[n, None], weights[n, None]) for n in range(len(x))])
    for rows in (*range(1, 20), 33, 64, 97, 200, 700):
        assert torch.equal(packed(x[:rows], index[:rows], weights[:rows]), alone[:rows])
    order = torch.randperm(len(x))
    assert torch.equal(packed(x[order], index[order], weights[order]), alone[order])


def test_all_rows_may_choose_the_same_experts() -> None:
    layer = layer_of(8, 64, 48, SILU)
    x, _, weights = routed(150, 8, 2, 48)
    index = torch.tensor([5, 2]).expand(150, 2).contiguous()
    packed = layer.packed()
    close(packed(x, index, weights), layer(x, index, weights))
    assert torch.equal(packed(x[:1], index[:1], weights[:1])[0], packed(x, index, weights)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("live", [0, 1, 8, 33, 50, 60])
def test_rows_that_are_not_live_are_left_alone(live: int, kind: Kind) -> None:
    dtype, activations = kind
    packed = layer_of(8, 40, 64, SILU, dtype).packed(activations)
    x, index, weights = routed(50, 8, 2, 64)
    expected = packed(x[:live], index[:live], weights[:live])
    x[live:], weights[live:], index[live:] = math.nan, math.nan, 1 << 40
    out = torch.full((50, 64), -7.0)
    assert packed(x, index, weights, torch.tensor([live]), out) is out
    assert torch.equal(out[:live], expected) and (out[live:] == -7).all()


@pytest.mark.parametrize("live", [0, 9, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_a_residual_is_added_to_the_sum(live: int, kind: Kind) -> None:
    """Also in place, where it is the residual stream; rows of a call for more than a chunk."""
    dtype, activations = kind
    packed = layer_of(2, 40, 600, SILU, dtype).packed(activations)
    x, index, weights = routed(300, 2, 2, 600)
    stream = torch.randn(300, 700)[:, :600]
    expected = stream + packed(x, index, weights)
    count = torch.tensor([live])
    out = torch.full((300, 600), -7.0)
    assert packed(x, index, weights, count, out, residual=stream) is out
    assert torch.equal(out[:live], expected[:live]) and (out[live:] == -7).all()
    before = stream.clone()
    packed(x, index, weights, count, stream, residual=stream)
    assert torch.equal(stream[:live], expected[:live]) and torch.equal(stream[live:], before[live:])
    alone = packed(x[:1], index[:1], weights[:1], residual=before[:1])
    assert torch.equal(alone, expected[:1])


def test_weights_of_experts_without_rows_are_not_used() -> None:
    layer = layer_of(6, 40, 48, SILU)
    x, _, weights = routed(9, 6, 2, 48)
    index = torch.randint(2, 4, (9, 2))
    expected = layer.packed()(x, index, weights)
    assert layer.gate is not None
    for tensor in (layer.gate, layer.up, layer.down):
        tensor[[0, 1, 4, 5]] = math.nan
    assert torch.equal(layer.packed()(x, index, weights), expected)


def test_an_index_that_is_no_expert_adds_nothing() -> None:
    layer = layer_of(4, 40, 48, SILU)
    x, index, weights = routed(9, 4, 2, 48)
    index[:, 1], index[3], index[4, 0] = 4, -1, 1 << 40
    weights[:, 1] = math.nan
    expected = layer(x, index, torch.where(index == 4, 0, weights))
    actual = layer.packed()(x, index, weights)
    close(actual, expected.nan_to_num())
    assert not actual[3:5].any()


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_weights_of_16_bits_give_the_bits_of_the_same_in_32(dtype: torch.dtype) -> None:
    layer = layer_of(4, 40, 48, SILU, dtype, has_bias=True)
    assert layer.gate is not None
    given = routed(30, 4, 2, 48)
    expected = layer.packed(Activations.FLOAT32)(*given)
    layer.gate, layer.up, layer.down = layer.gate.float(), layer.up.float(), layer.down.float()
    assert torch.equal(layer.packed()(*given), expected)


def test_nan_and_infinity_stay_in_their_row() -> None:
    packed = layer_of(4, 40, 48, CLAMPED).packed()
    x, index, weights = routed(9, 4, 2, 48)
    expected = packed(x, index, weights)
    x[2, 5], x[4, 7] = math.nan, math.inf
    actual = packed(x, index, weights)
    assert actual[[2, 4]].isnan().all()
    others = [0, 1, 3, 5, 6, 7, 8]
    assert torch.equal(actual[others], expected[others])


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_gives_the_bits_of_a_call(kind: Kind) -> None:
    dtype, activations = kind
    packed = layer_of(16, 40, 64, SILU, dtype).packed(activations)
    x, index, weights = routed(33, 16, 4, 64)
    live, out = torch.tensor([33]), torch.zeros(33, 64)
    graph = Captured(lambda: packed(x, index, weights, live, out))
    for count, seed in ((33, 1), (0, 2), (8, 3), (33, 4)):
        for mine, new in zip((x, index, weights), routed(33, 16, 4, 64, seed), strict=True):
            mine.copy_(new)
        live.fill_(count)
        out.zero_()
        graph.replay()
        assert torch.equal(out[:count], packed(x[:count], index[:count], weights[:count]))
        assert not out[count:].any()


class Lazy(Sequence[Tensor]):
    """Matrices that exist while they are read."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.read = weight, list[int]()

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, expert: int) -> Tensor:  # type: ignore[override]
        self.read.append(expert)
        return self.weight[expert].clone()


def test_views_and_lazy_matrices_are_packed_expert_by_expert() -> None:
    layer = layer_of(5, 40, 48, SILU, torch.float16)
    assert layer.gate is not None
    given = routed(9, 5, 2, 48)
    expected = layer.packed()(*given)
    interleaved = torch.stack((layer.gate, layer.up), 2).flatten(1, 2).transpose(1, 2).contiguous()
    views = interleaved[..., ::2].transpose(1, 2), interleaved[..., 1::2].transpose(1, 2)
    assert torch.equal(Experts(*views, layer.down, SILU)(*given), expected)
    lazy = [Lazy(matrices) for matrices in (layer.gate, layer.up, layer.down)]
    assert torch.equal(Experts(*lazy, SILU)(*given), expected)
    assert all(matrices.read == list(range(5)) for matrices in lazy)
    narrow = Experts(layer.gate.float(), layer.up.float(), layer.down.float(), SILU, dtype=torch.float16)
    assert narrow.up.parts[0] == Format.F16 and torch.equal(narrow(*given), expected)


def test_experts_may_be_in_two_sets() -> None:
    """Each set adds the results of its own experts."""
    layer = layer_of(6, 40, 48, SILU, has_bias=True)
    assert layer.gate is not None and layer.gate_bias is not None
    assert layer.up_bias is not None and layer.down_bias is not None
    x, index, weights = routed(33, 6, 2, 48)
    out = torch.zeros(33, 48)
    for part in (slice(4), slice(4, 6)):
        experts = Experts(
            layer.gate[part],
            layer.up[part],
            layer.down[part],
            SILU,
            gate_bias=layer.gate_bias[part],
            up_bias=layer.up_bias[part],
            down_bias=layer.down_bias[part],
            first=part.start or 0,
        )
        experts(x, index, weights, out=out, residual=out)
    close(out, layer(x, index, weights))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("is_dense_first", [False, True])
def test_experts_of_several_formats_are_refused(device: str, is_dense_first: bool) -> None:
    """On every device: a matrix must not be left out."""
    ups = [random_blocks(Format.Q8_0, 64, 32).to(device), torch.randn(64, 32, device=device)]
    downs = [torch.randn(32, 64, device=device)] * 2
    with pytest.raises(InputError, match=r"matrices of expert 1 are in|matrix 1 must be Q8_0"):
        Experts(None, ups[::-1] if is_dense_first else ups, downs, SILU)


def test_arguments_that_do_not_fit_are_refused() -> None:
    layer = layer_of(4, 40, 48, SILU)
    packed = layer.packed()
    x, index, weights = routed(9, 4, 2, 48)
    for message, arguments in {
        "float32, not torch.float16": (x.half(), index, weights),
        "int64, not torch.int32": (x, index.int(), weights),
        "float32, not torch.float64": (x, index, weights.double()),
        r"\[9, k\], not \[8, 2\]": (x, index[:8], weights[:8]),
        r"\[9, k\], not \[9, 2\] and \[9, 1\]": (x, index, weights[:, :1]),
        "at least one expert": (x, index[:, :0], weights[:, :0]),
        "must be contiguous": (x, index.T.contiguous().T, weights),
        r"\[N, 48\], not \[9, 47\]": (x[:, :47], index, weights),
    }.items():
        with pytest.raises(InputError, match=message):
            packed(*arguments)
    for residual in (torch.zeros(9, 49), torch.zeros(48, 9).T, torch.zeros(9, 48, dtype=torch.float64)):
        with pytest.raises(InputError, match="residual must be"):
            packed(x, index, weights, residual=residual)
    with pytest.raises(InputError, match="biases of gates and ups"):
        Experts(layer.gate, layer.up, layer.down, SILU, up_bias=torch.zeros(4, 40))
    with pytest.raises(InputError, match="no gate_bias"):
        Experts(None, layer.up, layer.down, SILU, gate_bias=torch.zeros(4, 40))
    with pytest.raises(InputError, match=r"\[40, 48\], not \[\[40, 48\], \[39, 48\]\]"):
        Experts(layer.gate, layer.up[:, :39], layer.down, SILU)
    with pytest.raises(InputError, match="4 down projections of 39 inputs"):
        Experts(layer.gate, layer.up, layer.down[..., :39], SILU)
    with pytest.raises(InputError, match="at least one expert"):
        Experts(None, layer.up[:0], layer.down[:0], SILU)
    with pytest.raises(InputError, match="float64"):
        Experts(layer.gate, layer.up, layer.down, SILU, dtype=torch.float64)
    with pytest.raises(InputError, match=r"multiplies F32 by rows in BFLOAT16"):
        layer.packed(Activations.BFLOAT16)
