"""A decoder's products on the CPU: torch's values with what stands around them, and a row's bits whatever stands beside
it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.activations import DTYPES, KINDS, NEEDS_AMX, Kind, activations_of, rounded
from support.products import rest_slow
from weft import _core
from weft.errors import InputError
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.formats import Activations
from weft.ops.linear import Added, Linear, Norm, add_norm
from weft.ops.packing import PackingThreads, activations_named


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def weights(outputs: int, inputs: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    torch.manual_seed(1000 * outputs + inputs + seed)
    return (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)


def normed(x: Tensor, norm: Norm) -> Tensor:
    x = x.double()
    return x * (x.square().mean(1, keepdim=True) + norm.eps).rsqrt() * norm.weight.double()


def rows_of(x: Tensor, norm: Norm | None, activations: Activations) -> Tensor:
    """The rows that a product multiplies, in float64. A number near the middle of two in bfloat16 is rounded as that of
    the kernel's norm."""
    if activations is Activations.BFLOAT16:
        return rounded(x if norm is None else norm(x), activations).double()
    return x.double() if norm is None else normed(x, norm)


def close(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("outputs", "inputs"), list(itertools.product([1, 15, 63, 64, 65, 200, 704], [2, 31, 192, 577]))
)
def test_values_are_torchs(outputs: int, inputs: int, kind: Kind) -> None:
    dtype, activations = kind
    weight, bias = weights(outputs, inputs, dtype), torch.randn(outputs)
    norm = Norm(torch.rand(inputs) + 0.5, 1e-5)
    plain, biased = (
        Linear(weight, activations=activations),
        Linear(weight, bias, activations=activations),
    )
    for rows in (1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 31):
        x = torch.randn(rows, inputs + 3)[:, 1 : inputs + 1]  # rows any distance apart
        product = rows_of(x, None, activations) @ weight.double().T
        close(plain(x), product)
        close(biased(x), product + bias)
        under_norm = rows_of(x, norm, activations) @ weight.double().T
        close(plain(x, norm), under_norm)
        residual = torch.randn(rows, outputs + 2)[:, :outputs]
        expected = residual.double() + under_norm + bias
        out = torch.full((rows, outputs + 1), -7.0)
        biased(x, norm, residual=residual, out=out[:, :outputs])
        close(out[:, :outputs], expected)
        assert (out[:, outputs] == -7).all()  # nothing beyond the last output is written
        biased(x, norm, residual=residual, out=residual)
        close(residual, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inner", [1, 40, 64, 100, 512])
@pytest.mark.parametrize("has_bias", [False, True])
def test_swiglu_is_gate_times_up(inner: int, kind: Kind, has_bias: bool) -> None:
    dtype, activations = kind
    weight = weights(2 * inner, 48, dtype)
    bias = torch.randn(2 * inner) if has_bias else None
    linear, norm = (
        Linear(weight, bias, activation=SWIGLU, gated=True, activations=activations),
        Norm(torch.rand(48) + 0.5, 1e-6),
    )
    for rows in (1, 4, 7, 20, 70):
        x = 3 * torch.randn(rows, 48)
        both = rows_of(x, norm, activations) @ weight.double().T + (0 if bias is None else bias.double())
        gate, up = both.chunk(2, 1)
        close(linear(x, norm), F.silu(gate) * up, 2e-5 if activations is Activations.FLOAT32 else 1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", Function)
@pytest.mark.parametrize(
    ("gated", "scale", "softcap"), [(False, 1.0, 0.0), (True, 0.6, 0.0), (False, 2.0, 3.0)]
)
def test_sums_are_activated_then_scaled_then_capped(
    function: Function, gated: bool, scale: float, softcap: float, kind: Kind
) -> None:
    """The residual is added last. It may be where the result goes."""
    dtype, activations = kind
    for results in (1, 65, 100):
        outputs = 2 * results if gated else results
        weight, bias, norm = (
            weights(outputs, 48, dtype),
            torch.randn(outputs),
            Norm(torch.rand(48) + 0.5, 1e-6),
        )
        activation = Activation(function, slope=1.5, limit=1.2, shift=0.5)
        linear = Linear(
            weight,
            bias,
            activation=activation,
            gated=gated,
            scale=scale,
            softcap=softcap,
            activations=activations,
        )
        for rows in (1, 7, 20, 70):
            x, residual = 2 * torch.randn(rows, 48), torch.randn(rows, results + 3)[:, :results]
            sums = rows_of(x, norm, activations) @ weight.double().T + bias.double()
            y = activation(*(sums.chunk(2, 1) if gated else (sums,))) * scale
            y = softcap * torch.tanh(y / softcap) if softcap else y
            close(linear(x, norm), y, 4e-5 if activations is Activations.FLOAT32 else 2e-4)
            alone = torch.cat([linear(x[r : r + 1], norm, residual=residual[r : r + 1]) for r in range(rows)])
            before = residual.clone()
            assert linear(x, norm, residual=residual, out=residual) is residual
            assert torch.equal(residual, alone)
            close(alone, y + before, 4e-5 if activations is Activations.FLOAT32 else 2e-4)


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1536, 100])
def test_a_rows_bits_are_its_own(threads: int, kind: Kind, outputs: int) -> None:
    dtype, activations = kind
    norm = Norm(torch.rand(192) + 0.5, 1e-5)
    linear = Linear(weights(outputs, 192, dtype), activations=activations)
    swiglu = Linear(weights(2 * outputs, 192, dtype), activation=SWIGLU, gated=True, activations=activations)
    x = torch.randn(600, 192)
    alone = torch.cat([linear(row[None], norm) for row in x])
    alone_swiglu = torch.cat([swiglu(row[None], norm) for row in x])
    for rows in (*range(1, 25), 64, 97, 129, 130, 241, 600):
        assert torch.equal(linear(x[:rows], norm), alone[:rows])
        assert torch.equal(swiglu(x[:rows], norm), alone_swiglu[:rows])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("live", [0, 1, 7, 20, 97, 150, 200])
def test_rows_that_are_not_live_are_left_alone(live: int, kind: Kind) -> None:
    dtype, activations = kind
    rows, norm = 150, Norm(torch.rand(96) + 0.5, 1e-5)
    plain = Linear(weights(400, 96, dtype), torch.randn(400), activations=activations)
    swiglu = Linear(
        weights(400, 96, dtype), torch.randn(400), activation=SWIGLU, gated=True, activations=activations
    )
    x, residual = torch.randn(rows, 96), torch.randn(rows, 400)
    expected = plain(x[:live], norm, residual=residual[:live]), swiglu(x[:live], norm)
    x[live:], residual[live:] = float("nan"), float("nan")
    number = torch.tensor([live])
    outs, also = [torch.full((rows, width), -7.0) for width in (400, 200)], torch.full((rows, 400), -7.0)
    assert plain(x, norm, residual=residual, out=outs[0], also=also, live=number) is outs[0]
    swiglu(x, norm, out=outs[1], live=number)
    assert torch.equal(also, outs[0])
    for out, of_live in zip(outs, expected, strict=True):
        assert torch.equal(out[:live], of_live) and (out[live:] == -7).all()
    plain(x, norm, residual=residual, out=residual, live=number)
    assert torch.equal(residual[:live], expected[0]) and residual[live:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_weights_of_16_bits_give_the_bits_of_the_same_in_32(dtype: torch.dtype) -> None:
    weight, x = weights(300, 96, dtype), torch.randn(9, 96)
    assert torch.equal(Linear(weight, activations=Activations.FLOAT32)(x), Linear(weight.float())(x))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_every_number_of_16_bits_is_widened_exactly(dtype: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    out = Linear(numbers[:, None].contiguous(), activations=Activations.FLOAT32)(torch.ones(1, 1))
    assert torch.equal(out[0], numbers.float())


ROUNDED = [Activations.BFLOAT16, pytest.param(Activations.TWO_BFLOAT16, marks=NEEDS_AMX)]


@pytest.mark.parametrize("activations", ROUNDED)
def test_bfloat16_takes_weights_exactly_and_floats_nearly(activations: Activations) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[numbers.isfinite() & (numbers.float().abs() >= 2.0**-126)]
    out = Linear(numbers[:, None].contiguous(), activations=activations)(torch.ones(1, 1))
    assert torch.equal(out[0], numbers.float())
    x = torch.randn(10_000, 1) * torch.logspace(-20, 20, 10_000)[:, None]
    one = Linear(torch.ones(1, 1).bfloat16(), activations=activations)
    if activations is Activations.BFLOAT16:
        assert torch.equal(one(x), x.bfloat16().float())
    else:
        assert ((one(x) - x).abs() <= 2.0**-17 * x.abs()).all()
    ends = torch.tensor([[torch.inf], [-torch.inf], [torch.nan]])
    torch.testing.assert_close(one(ends), ends, equal_nan=True, rtol=0, atol=0)


@rest_slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_norm", [True, False])
def test_a_norm_of_other_rows_is_added_first(threads: int, kind: Kind, has_norm: bool) -> None:
    dtype, activations = kind
    for inputs, outputs in ((31, 70), (192, 300)):
        linear = Linear(weights(outputs, inputs, dtype), torch.randn(outputs), activations=activations)
        norm, after = Norm(torch.rand(inputs) + 0.5, 1e-5), Norm(torch.rand(inputs) + 0.5, 1e-6)
        before = norm if has_norm else None
        for rows in (1, 7, 17, 120):
            x, y = torch.randn(rows, inputs + 1)[:, 1:], torch.randn(rows, inputs + 3)[:, :inputs]
            total = torch.full((rows, inputs + 2), -7.0)
            out = linear(x, before, added=Added(y, after, total[:, :inputs]))
            close(total[:, :inputs], x + normed(y, after))
            assert (total[:, inputs:] == -7).all()
            assert torch.equal(add_norm(x, y, after), total[:, :inputs])
            assert torch.equal(out, linear(total[:, :inputs], before))
            for row in range(0, rows, 5):
                one = torch.empty(1, inputs)
                alone = linear(x[row : row + 1], before, added=Added(y[row : row + 1], after, one))
                assert torch.equal(alone[0], out[row]) and torch.equal(one[0], total[row, :inputs])
            live = torch.tensor([rows // 2])
            cut, of_cut = torch.full((rows, inputs), -7.0), torch.full((rows, outputs), -7.0)
            linear(x, before, added=Added(y, after, cut), out=of_cut, live=live)
            assert (
                torch.equal(cut[: rows // 2], total[: rows // 2, :inputs]) and (cut[rows // 2 :] == -7).all()
            )
            assert torch.equal(of_cut[: rows // 2], out[: rows // 2]) and (of_cut[rows // 2 :] == -7).all()


def test_the_total_is_a_place_of_its_own() -> None:
    linear, norm = Linear(torch.randn(4, 4)), Norm(torch.ones(4), 1e-5)
    x, y, residual = torch.randn(3, 2, 4)
    for total in (x, y, residual):
        with pytest.raises(InputError, match="neither x nor the added rows nor the residual"):
            linear(x, added=Added(y, norm, total), residual=residual)
    with pytest.raises(InputError, match="one shape"):
        linear(x, added=Added(y, norm, torch.empty(1, 4)))


def test_a_norm_is_added_in_place() -> None:
    x, y, norm = torch.randn(5, 33), torch.randn(5, 33), Norm(torch.rand(33) + 0.5, 1e-5)
    expected, live = add_norm(x, y, norm), torch.tensor([3])
    before = x.clone(), y.clone()
    assert add_norm(x, y, norm, x, live) is x
    assert torch.equal(x[:3], expected[:3]) and torch.equal(x[3:], before[0][3:])
    add_norm(before[0], y, norm, y, live)
    assert torch.equal(y[:3], expected[:3]) and torch.equal(y[3:], before[1][3:])


def test_a_norm_is_torchs_and_writes_where_it_is_told() -> None:
    torch.manual_seed(0)
    for width in (1, 16, 63, 64, 200, 576):
        norm = Norm(torch.rand(width) + 0.5, 1e-5)
        x = torch.randn(5, width + 2)[:, 1 : width + 1]
        out = torch.zeros(5, width + 1)
        assert norm(x, out[:, :width]) is not x
        close(out[:, :width], normed(x, norm))
        close(norm(x), F.rms_norm(x, (width,), norm.weight, norm.eps))


def test_the_largest_number_that_rounds_to_infinity_does() -> None:
    """A float32 beyond the largest bfloat16 rounds to it, or to infinity from the middle on."""
    largest, middle = torch.finfo(torch.bfloat16).max, torch.tensor(float.fromhex("0x1.ffp127"))
    below = torch.nextafter(middle, torch.tensor(0.0))
    one = Linear(torch.ones(1, 1).bfloat16(), activations=Activations.BFLOAT16)
    x = torch.stack((torch.tensor(largest), below, middle, -middle))[:, None]
    assert one(x).flatten().tolist() == [largest, largest, torch.inf, -torch.inf]


def test_activations_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for weight in (torch.randn(4, 4), torch.randn(4, 4).half()):
        with pytest.raises(InputError, match=r"multiplies F.* by rows in BFLOAT16"):
            Linear(weight, activations=Activations.BFLOAT16)
    with pytest.raises(InputError, match="only products on the CPU"):
        Linear(torch.empty(4, 4, device="meta"), activations=Activations.BFLOAT16)
    monkeypatch.setattr(_core, "can_multiply", lambda *_: False)
    with pytest.raises(InputError, match="multiplies BF16 by rows in TWO_BFLOAT16"):
        Linear(torch.randn(4, 4).bfloat16(), activations=Activations.TWO_BFLOAT16)


def test_by_default_activations_are_as_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of more digits than bfloat16 are not multiplied by fewer."""
    weight = torch.randn(70, 33)
    for is_fast in (True, False):
        monkeypatch.setattr(_core, "has_fast_bfloat16", lambda is_fast=is_fast: is_fast)
        fastest = Activations.BFLOAT16 if is_fast else Activations.FLOAT32
        assert activations_of(Linear(weight.bfloat16())) == [fastest]
        assert activations_of(Linear(weight)) == [Activations.FLOAT32]
        assert activations_of(Linear(weight.half())) == [Activations.FLOAT32]
        mixed = Linear([weight, weight.bfloat16()])
        assert activations_of(mixed) == [Activations.FLOAT32]


def test_a_model_that_loads_has_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product's own choice comes first, and a matrix that can't be multiplied so has its default."""
    monkeypatch.setattr(_core, "has_fast_bfloat16", lambda: False)
    weight = torch.randn(70, 33)
    with PackingThreads(Activations.BFLOAT16):
        chosen = [
            Linear(weight.bfloat16()),
            Linear(weight.bfloat16(), activations=Activations.FLOAT32),
            Linear(weight),
        ]
    after = Linear(weight.bfloat16())
    assert [activations_of(linear)[0] for linear in (*chosen, after)] == [
        Activations.BFLOAT16,
        Activations.FLOAT32,
        Activations.FLOAT32,
        Activations.FLOAT32,
    ]


def test_a_rounding_that_the_device_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="activation_dtype is 'float32', but it is for a CPU"):
        activations_named("float32", torch.device("cuda"))
    assert activations_named("auto", torch.device("cuda")) is None
    monkeypatch.setattr(_core, "can_multiply", lambda *_: False)
    with pytest.raises(InputError, match="'bfloat16x2', which needs a processor with AMX"):
        activations_named("bfloat16x2", torch.device("cpu"))


def test_what_the_cpu_does_not_compute_in_is_refused() -> None:
    linear = Linear(torch.randn(4, 4))
    with pytest.raises(InputError, match="float32"):
        linear(torch.randn(2, 4).half())
    with pytest.raises(InputError, match="contiguous"):
        linear(torch.randn(4, 2).T)
