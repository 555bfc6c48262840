"""A launched function that is captured: every replay computes what a run does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support.captured import Captured


def integers(*shape: int, most: int = 5) -> Tensor:
    return torch.randint(0, most, shape)


COMPUTATIONS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "pointwise": (lambda x: torch.where(x > 0, x.exp(), x * 2 - 1), (torch.randn(4, 5),)),
    "a topk": (lambda x: x.topk(3, dim=1), (torch.randn(4, 9),)),
    "a sort": (lambda x: x.sort(dim=0, descending=True), (torch.randn(7, 3),)),
    "several parts": (lambda x: torch.cat(x.split([2, 3, 4], 1)[::-1], 1), (torch.randn(3, 9),)),
    "chunks and a stack": (lambda x: torch.stack(x.chunk(3, 1), 2), (torch.randn(3, 9),)),
    "parts with a loop": (lambda x: sum(row * i for i, row in enumerate(x)), (torch.randn(4, 3),)),
    "views of views": (lambda x: x[1:, ::2].t()[:, 1:].unsqueeze(1).expand(-1, 3, -1), (torch.randn(5, 8),)),
    "a reshape that copies": (lambda x: x.transpose(0, 1).reshape(-1) + 1, (torch.randn(5, 8),)),
    "flatten and contiguous": (lambda x: x.permute(2, 0, 1).contiguous().flatten(1), (torch.randn(2, 3, 4),)),
    "five dimensions": (lambda x: x.permute(4, 2, 0, 3, 1).clone(), (torch.randn(2, 3, 2, 3, 2),)),
    "five dimensions, copied": (lambda x: torch.zeros(2, 3, 2, 3, 4).copy_(x), (torch.randn(3, 2, 3, 1),)),
    "five dimensions, filled": (lambda x: torch.full((2, 3, 2, 3, 2), 7).transpose(1, 3) * x, (integers(1),)),
    "conversion": (lambda x: (x.double(), x.to(torch.int32), x.half().float(), x > 0), (torch.randn(6) * 9,)),
    "a copy that converts": (lambda x: torch.zeros(6, dtype=torch.int64).copy_(x), (torch.randn(6) * 9,)),
    "bits": (lambda x: x.view(torch.int32) & 0xFF, (torch.randn(6),)),
    "bytes of an odd size": (lambda x: (x + 1)[2:4].view(torch.int16), (integers(5).to(torch.int8),)),
    "nothing": (lambda x: torch.cat((x[:0] * 2, x[2:2], x)), (torch.randn(4, 2),)),
    "nothing at all": (lambda x: (x.sum(0), x.new_zeros(0, 3), torch.zeros(0)), (torch.randn(0, 2),)),
    "factories": (
        lambda x: x + torch.zeros(4) + torch.ones(2, 4) * torch.full((4,), 2.5) + torch.arange(4) + torch.eye(4)[1],
        (torch.randn(4),),
    ),
    "factories like another": (
        lambda x: x.new_full((3,), 4) + torch.ones_like(x) + x.new_zeros(3) + x.new_ones(3) + torch.full_like(x, 2),
        (torch.randn(3),),
    ),
    "constants": (lambda x: x[torch.tensor([2, 0])] * torch.tensor(3.0) + torch.as_tensor([1.0]), (torch.randn(3),)),
    "an index": (lambda x, i: (x[i], x[:, i], x[i, i], x.index_select(1, i)), (torch.randn(5, 5), integers(3))),
    "gather": (lambda x, i: x.gather(1, i.expand(4, 2)), (torch.randn(4, 5), integers(4, 1))),
    "matrices": (lambda x: torch.nn.functional.linear(x, x) @ x.t().contiguous(), (torch.randn(4, 4),)),
    "softmax and einsum": (lambda x: torch.einsum("ij,kj->ik", x.softmax(1), x), (torch.randn(4, 5),)),
    "attention": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        (torch.randn(1, 2, 4, 8),),
    ),
    "a norm of three results": (lambda x: torch.native_layer_norm(x, [5], None, None, 1e-5), (torch.randn(3, 5),)),
    "complex numbers": (lambda x: torch.view_as_complex(x).conj().clone() * 2j, (torch.randn(3, 2),)),
    "a lazy conjugate": (lambda x: (x.conj() + 1, x.conj().imag.clone()), (torch.randn(4, dtype=torch.complex64),)),
    "masks that keep the shape": (
        lambda x: x.masked_fill(x > 0, 0) + x.cumsum(0).clamp(max=1), (torch.randn(3, 4),)
    ),
    "lists of tensors": (lambda x: torch._foreach_add([x, x * 2], 1), (torch.randn(3),)),
    "repetition": (lambda x: (x.repeat(2, 1), x.repeat_interleave(2, 0), x.tile(2), x.roll(1)), (torch.randn(3, 2),)),
    "metadata": (lambda x: x * x.numel() + (1 if x.is_contiguous() and not x.is_pinned() else 0), (torch.randn(3),)),
}  # fmt: skip


def tensors_of(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    assert isinstance(value, (tuple, list))
    return [tensor for part in value for tensor in tensors_of(part)]


def fresh(tensor: Tensor) -> Tensor:
    """Other values of the same kind."""
    return tensor.flip(0) if not tensor.is_floating_point() else torch.randn_like(tensor)


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_a_replay_computes_what_a_run_does(name: str) -> None:
    fn, given = COMPUTATIONS[name]
    inputs = [tensor.clone() for tensor in given]
    with torch.inference_mode():
        outs = [torch.empty_like(tensor) for tensor in tensors_of(fn(*inputs))]

    def launched() -> None:
        for out, tensor in zip(outs, tensors_of(fn(*inputs)), strict=True):
            assert out.shape == tensor.shape and out.dtype == tensor.dtype
            out.copy_(tensor)

    captured = Captured(launched)
    for _ in range(2):
        for tensor in inputs:
            tensor.copy_(fresh(tensor))
        captured.replay()
        with torch.inference_mode():
            for out, tensor in zip(outs, tensors_of(fn(*inputs)), strict=True):
                assert torch.equal(out, tensor)


WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "in place": lambda x, i: x.mul_(2).add_(1).clamp_(max=3),
    "to a view": lambda x, i: x[1:, 2].copy_(x[:-1, 1]),
    "an assignment": lambda x, i: x.__setitem__((slice(0, 2), 1), x[2:, 0]),
    "a number": lambda x, i: x.__setitem__(1, 5.0),
    "a fill": lambda x, i: (x[:, 1].fill_(7), x[:, 2:].zero_(), x[0].fill_(torch.tensor(2.0))),
    "a fill of a transposed part": lambda x, i: x.t()[1:3].fill_(4),
    "out": lambda x, i: torch.add(x[0], 1, out=x[1]),
    "out of several": lambda x, i: torch.topk(x[0], 2, out=(x[1, :2], i[:2])),
    "what an out variant gives": lambda x, i: torch.max(x.clone(), 0, out=(x[0], torch.empty_like(i)))[0].add_(1),
    "by index": lambda x, i: x.index_add_(0, i[:2], x[:2] * 3).index_copy_(0, i[:1], x[:1] * 2),
    "scatter": lambda x, i: x.scatter_(1, i[:, None], x[:, :1] + 1).scatter_add_(1, i[:, None], x[:, 1:2]),
    "put": lambda x, i: x.__setitem__(i, x[0] + x),
    "one number by a mask": lambda x, i: x.__setitem__(x > 0, 0.5),
    "a mask": lambda x, i: x.masked_fill_(x > 0, 1).masked_fill_(i[:, None] > 1, -1),
    "a shape in place": lambda x, i: torch.sum(
        x.clone().t_().unsqueeze_(0).add_(1).squeeze_(0), 0, out=x[0]
    ),
    "lists": lambda x, i: torch._foreach_mul_([x[0], x[2]], 3),
    "a result and a written argument": lambda x, i: x[2].copy_(
        torch.nn.functional.batch_norm(x + 0, x[0], x[1].abs_(), training=True).sum(0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_replay_writes_what_a_run_does(name: str) -> None:
    x, index = torch.randn(4, 4), torch.tensor([2, 0, 3, 1])
    captured = Captured(lambda: WRITES[name](x, index))
    assert index.tolist() == [2, 0, 3, 1]
    for _ in range(2):
        x.normal_()
        index.copy_(torch.randperm(4))
        expected = x.clone(), index.clone()
        captured.replay()
        with torch.inference_mode():
            WRITES[name](*expected)
        assert torch.equal(x, expected[0])
        assert torch.equal(index, expected[1])


def test_random_numbers_are_drawn_at_every_replay() -> None:
    out, generator = torch.zeros(3, 2), torch.Generator().manual_seed(1)

    def draw() -> None:
        out[0].copy_(torch.rand(2))
        out[1].normal_()
        out[2].copy_(torch.randn(2, generator=generator))

    captured, seen = Captured(draw), set()
    for _ in range(4):
        captured.replay()
        seen.update(out.flatten().tolist())
    assert len(seen) == 24
