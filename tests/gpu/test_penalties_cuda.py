"""Penalties, counting and min_tokens on CUDA: the same bits as on the CPU."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from weft.ops.log_probs import log_probs
from weft.ops.penalties import Penalties, count_tokens_, penalize_
from weft.ops.suppress_ends import suppress_ends_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

INF = float("inf")


def tables(slots: int, vocab: int) -> Penalties:
    """Slots that ask for all sorts of things, some for nothing; bad words of few different tokens."""
    g = torch.Generator().manual_seed(vocab)
    few = min(vocab, 3)
    penalties = Penalties.neutral(slots, vocab, 700, 40)
    penalties.active.copy_(torch.randint(0, 4, (slots,), generator=g))
    penalties.repetition[::2] = 1.3
    penalties.presence.normal_(generator=g)
    penalties.frequency[1::3] = 0.7
    penalties.counts.copy_(torch.randint(-40, 5, (slots, vocab), generator=g).clamp(min=0))
    penalties.prompt.copy_(torch.randint(-(2**31), 2**31, penalties.prompt.shape, generator=g))
    penalties.bias.normal_(generator=g).masked_fill_(torch.rand(slots, vocab, generator=g) < 0.1, -INF)
    penalties.biased[::2] = 1
    penalties.bad_words.copy_(torch.randint(-1, few, (slots, 700), generator=g))
    penalties.history.copy_(torch.randint(0, few, (slots, 40), generator=g))
    return penalties


def on_cuda(penalties: Penalties) -> Penalties:
    return Penalties(**{f.name: getattr(penalties, f.name).cuda() for f in fields(penalties)})


def same_bits(cuda: Tensor, cpu: Tensor) -> bool:
    return torch.equal(cuda.cpu().contiguous().view(torch.uint8), cpu.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 3, 65, 2048, 20001, 128256])
@pytest.mark.parametrize("drafter", [False, True])
def test_the_same_logits_as_on_the_cpu(vocab: int, dtype: torch.dtype, drafter: bool) -> None:
    known = 2 * vocab if drafter else vocab
    d2t = torch.randperm(known)[:vocab] - torch.arange(vocab) if drafter else None
    penalties, slot = tables(6, known), torch.arange(-1, 7).repeat(2)
    context = (
        torch.randint(0, 41, (16,)),
        torch.randint(-1, min(known, 3), (16, 5)),
        torch.randint(0, 6, (16,)),
    )
    logits = (torch.randn(16, vocab + 3) * 5).to(dtype)[:, 1 : vocab + 1]
    logits[:, ::9] = -INF
    cuda = torch.empty_strided(logits.size(), logits.stride(), dtype=dtype, device="cuda")
    cuda.copy_(logits)
    rest = [c.cuda() for c in context] + ([d2t.cuda()] if d2t is not None else [])
    penalize_(cuda, slot.cuda(), on_cuda(penalties), *rest)
    penalize_(logits, slot, penalties, *context, d2t)
    assert same_bits(cuda, logits)


def test_the_same_counts_as_on_the_cpu() -> None:
    penalties = tables(6, 100)
    cuda = on_cuda(penalties)
    given = (torch.arange(5) - 1, torch.randint(-1, 101, (5, 9)), torch.arange(5) * 3, torch.arange(5) * 9)
    slot, tokens, count, position = given
    count_tokens_(penalties, slot, tokens, count, position)
    count_tokens_(cuda, *[t.cuda() for t in given])
    assert same_bits(cuda.counts, penalties.counts) and same_bits(cuda.history, penalties.history)


@pytest.mark.parametrize("vocab", [1, 64, 300, 128256])
def test_the_same_ends_are_suppressed_as_on_the_cpu(vocab: int) -> None:
    ends, until = torch.randint(-1, vocab, (4, 3)).int(), torch.randint(0, 9, (4,))
    slot, position = torch.randint(0, 4, (64,)), torch.randint(0, 9, (64,))
    logits = torch.randn(64, vocab)
    logits[torch.rand(64, vocab) < 0.999] = -INF
    cuda = logits.cuda()
    suppress_ends_(cuda, slot.cuda(), ends.cuda(), until.cuda(), position.cuda())
    suppress_ends_(logits, slot, ends, until, position)
    assert same_bits(cuda, logits)


def test_in_a_graph() -> None:
    penalties = on_cuda(tables(6, 32_000))
    start = on_cuda(penalties)
    logits = torch.randn(4, 32_000, device="cuda")
    slot = torch.arange(4, device="cuda")
    tokens, ends = (
        torch.tensor([[1, 2]] * 4, device="cuda"),
        torch.zeros(6, 1, dtype=torch.int32, device="cuda"),
    )
    two, length, until = torch.full_like(slot, 2), torch.zeros_like(slot), torch.full((6,), 10, device="cuda")
    values = torch.zeros(4, 4, device="cuda")

    def step() -> None:
        penalize_(logits, slot, penalties, length, tokens, two)
        suppress_ends_(logits, slot, ends, until, length)
        count_tokens_(penalties, slot, tokens, two, length)
        values.copy_(log_probs(logits, slot, 3)[0])
        length.add_(2)

    expected = logits.cpu()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    logits.copy_(expected)
    length.zero_()
    for field in fields(penalties):
        getattr(penalties, field.name).copy_(getattr(start, field.name))
    twin = Penalties(**{f.name: getattr(start, f.name).cpu() for f in fields(start)})
    for i in range(3):
        graph.replay()
        torch.cuda.synchronize()
        at = torch.full((4,), 2 * i)
        penalize_(expected, slot.cpu(), twin, at, tokens.cpu(), two.cpu())
        suppress_ends_(expected, slot.cpu(), ends.cpu(), until.cpu(), at)
        count_tokens_(twin, slot.cpu(), tokens.cpu(), two.cpu(), at)
        assert same_bits(logits, expected) and same_bits(penalties.counts, twin.counts)
        torch.testing.assert_close(values.cpu(), log_probs(expected, slot.cpu(), 3)[0])
