"""Rows between products, on the CPU: embeddings, joined norms, picked rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from support.activations import DTYPES, KINDS, Kind
from support.quantized import QUANTIZED, random_blocks
from weft.errors import InputError
from weft.ops.formats import Format
from weft.ops.linear import Linear, Norm
from weft.ops.rows import Layout, copy_rows_, embed, join_norms, take_rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_are_the_weights_rows(dtype: torch.dtype) -> None:
    weight = torch.randn(50, 33).to(dtype)
    tokens = torch.tensor([[3, 49, 0], [7, 3, 1]])
    for ids in (tokens[0], tokens[1], tokens[:, 1]):  # of any stride
        assert torch.equal(embed(weight, ids, torch.float32), weight[ids].float())
        assert torch.equal(embed(weight, ids, torch.float32, scale=0.3), weight[ids].float() * 0.3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 8, 31, 32, 33, 96, 577])
def test_embeddings_are_the_rows_of_a_linear_that_shares_them(width: int, kind: Kind) -> None:
    dtype, activations = kind
    for vocab in (1, 16, 64, 130):
        weight = torch.randn(vocab, width).to(dtype)
        linear, tokens = Linear(weight, activations=activations), torch.randperm(vocab)
        assert torch.equal(embed(linear, tokens, torch.float32), weight[tokens].float())
        scaled = embed(linear, tokens, torch.float32, scale=5.5)
        assert torch.equal(scaled, weight[tokens].float() * 5.5)
        outside = embed(linear, torch.tensor([-3, vocab, 2**40]), torch.float32)
        assert torch.equal(outside, weight[[0, vocab - 1, vocab - 1]].float())
        hidden, norm = torch.randn(vocab, width), Norm(torch.rand(width) + 0.5, 1e-5)
        joined = [join_norms(matrix, tokens, norm, hidden, norm) for matrix in (linear, weight)]
        assert torch.equal(*joined)
        assert torch.equal(joined[0][:, :width], norm(weight[tokens].float()))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_embeddings_may_be_quantised(kind: Format) -> None:
    width = 2 * kind.block.inputs - 3
    matrix = random_blocks(kind, 130, width)
    numbers, tokens = matrix.dequantized(), torch.randperm(130)
    hidden, norm = torch.randn(130, width), Norm(torch.rand(width) + 0.5, 1e-5)
    for stored in (matrix, matrix.flatten(0, 0)[:], Linear([matrix[:33], matrix[33:]])):
        assert torch.equal(embed(stored, tokens, torch.float32), numbers[tokens])
        assert torch.equal(embed(stored, tokens, torch.float32, scale=5.5), numbers[tokens] * 5.5)
        outside = embed(stored, torch.tensor([-3, 130]), torch.float32)
        assert torch.equal(outside, numbers[[0, 129]])
        joined = join_norms(stored, tokens, norm, hidden, norm)
        assert torch.equal(joined, join_norms(numbers, tokens, norm, hidden, norm))
    every_other = embed(matrix[::2], torch.tensor([3, 64]), torch.float32)
    assert torch.equal(every_other, numbers[[6, 128]])


def test_a_linear_with_gates_or_of_several_formats_has_no_embeddings() -> None:
    one, two = random_blocks(Format.Q4_0, 4, 32), random_blocks(Format.Q8_0, 4, 32)
    for linear, message in (
        (Linear(torch.randn(8, 4), gated=True), "gates has no embeddings"),
        (Linear([one, two]), "several formats has no embeddings"),
    ):
        with pytest.raises(InputError, match=message):
            embed(linear, torch.tensor([0]), torch.float32)
    with pytest.raises(InputError, match=r"embeddings are \[V, H\], not \[2, 2, 32\]"):
        embed(one.view(2, 2, 32), torch.tensor([0]), torch.float32)


def test_an_id_that_is_none_is_taken_for_the_nearest() -> None:
    weight = torch.randn(5, 8)
    found = embed(weight, torch.tensor([-1, -9, 5, 2**40]), torch.float32)
    assert torch.equal(found, weight[[0, 0, 4, 4]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_joined_norms_are_the_two_side_by_side(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    weight, hidden = torch.randn(20, 48).to(dtype), torch.randn(4, 50)[:, 1:49]
    one, two = Norm(torch.rand(48) + 0.5, 1e-5), Norm(torch.rand(48) + 0.5, 1e-6)
    tokens = torch.tensor([3, 19, 0, 3])
    expected = torch.cat(
        (
            F.rms_norm(weight[tokens].float(), (48,), one.weight, one.eps),
            F.rms_norm(hidden, (48,), two.weight, two.eps),
        ),
        1,
    )
    torch.testing.assert_close(join_norms(weight, tokens, one, hidden, two), expected)


def test_rows_are_picked_by_index() -> None:
    x, out = torch.randn(3, 4, 5), torch.zeros(3, 5)
    assert take_rows(x, torch.tensor([2, 0, 3]), out) is out
    assert torch.equal(out, torch.stack((x[0, 2], x[1, 0], x[2, 3])))


def live_results(live: int | None) -> list[torch.Tensor]:
    """The results of each operation on 5 rows, of which rows 2 to 4 can't be read without a trace. Results that are not
    written are -7."""
    torch.manual_seed(2)
    nan, number = float("nan"), None if live is None else torch.tensor([live])
    weight, tokens = torch.randn(20, 48), torch.tensor([3, 19, 0, 7, 5])
    hidden, x = torch.randn(5, 50)[:, 1:49], torch.randn(5, 4, 48)
    if live is not None:
        tokens[live:], hidden[live:], x[live:] = 1, nan, nan
    one, two = Norm(torch.rand(48) + 0.5, 1e-5), Norm(torch.rand(48) + 0.5, 1e-6)
    embedded, normed, taken = (torch.full((5, 48), -7.0) for _ in range(3))
    joined, copied = torch.full((5, 96), -7.0), torch.full((5, 50), -7.0)
    stored = Format.F32, Layout.ROWS, 20
    torch.ops.weft.embed(weight, tokens, embedded, *stored, number)
    torch.ops.weft.join_norms(
        weight, tokens, one.weight, one.eps, hidden, two.weight, two.eps, joined, *stored, number
    )
    one(hidden, normed, number)
    take_rows(x, torch.tensor([2, 0, 3, 1, 1]), taken, number)
    copy_rows_(copied[:, 1:49], hidden, number)
    return [embedded, joined, normed, taken, copied]


@pytest.mark.parametrize("live", [0, 1, 4, 5, 9])
def test_rows_that_are_not_live_are_left_alone(live: int) -> None:
    for got, whole in zip(live_results(live), live_results(None), strict=True):
        assert torch.equal(got[:live], whole[:live]) and (got[live:] == -7).all()


def test_live_rows_are_of_a_matrix() -> None:
    x = torch.randn(2, 3, 4)
    copy_rows_(torch.empty_like(x), x)
    with pytest.raises(InputError, match=r"x is \[N, H\], not \[2, 3, 4\]"):
        copy_rows_(torch.empty_like(x), x, torch.tensor([1]))


def test_rows_are_copied_between_any_strides() -> None:
    x, out = torch.randn(7, 12), torch.zeros(7, 40)
    for source, target in ((x, out[:, 3:15]), (x[:, ::2], out[:, :6]), (x[2:3], out[4:5, 20:32])):
        copy_rows_(target, source)
        assert torch.equal(target, source)
    assert not out[:, 15:20].any() and not out[0, 20:].any()
    for wrong in (x.double(), x[:, :5]):
        with pytest.raises(InputError, match="must be as x is"):
            copy_rows_(out[:, :12], wrong)
