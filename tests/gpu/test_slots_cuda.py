"""Penalties, min_tokens and any mix by slot on CUDA, and what verification moves: the same bits as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.kernels.random_slots import (
    DTYPES,
    on_cuda,
    random_logits,
    random_params,
    random_tokens,
    same_bits,
)
from support.kernels.slots import pick_drafts
from weft.errors import InputError
from weft.ops.log_probs import log_probs
from weft.ops.slots import SlotParams, advance_slots_, keep_logits_, sample_slots_, take_proposals_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SLOT = torch.arange(-1, 7).repeat(2)
"""Of six slots each, and one out of bounds on either side."""


def tables(vocab: int) -> SlotParams:
    """Six slots that ask for all sorts of things, some for nothing, with many bad words."""
    return random_params(6, vocab, vocab, bad_words=700, max_length=40)


def strided_on_cuda(logits: Tensor) -> Tensor:
    cuda = torch.empty_strided(logits.size(), logits.stride(), dtype=logits.dtype, device="cuda")
    return cuda.copy_(logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 3, 65, 2048, 20001, 128256])
def test_the_same_logits_and_tokens_as_on_the_cpu(vocab: int, dtype: torch.dtype) -> None:
    params, width = tables(vocab), 3
    base, inputs = torch.randint(0, 40, (16,)), random_tokens((16, width), vocab)
    logits = random_logits(16 * width, vocab, dtype)
    cuda = strided_on_cuda(logits)
    for wanted in (None, torch.rand(6, width) - 0.5):
        on_device = [t.cuda() for t in (SLOT, base, inputs)]
        given = None if wanted is None else wanted.cuda()
        token = sample_slots_(cuda, *on_device, on_cuda(params), given)
        expected = sample_slots_(logits, SLOT, base, inputs, params, wanted)
        assert same_bits(cuda, logits) and same_bits(token, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 3, 65, 2048, 20001, 128256])
@pytest.mark.parametrize("with_d2t", [False, True])
def test_the_same_drafts_as_on_the_cpu(vocab: int, dtype: torch.dtype, with_d2t: bool) -> None:
    known = 2 * vocab if with_d2t else vocab
    d2t = torch.randperm(known)[:vocab] - torch.arange(vocab) if with_d2t else None
    params, slot = tables(known), torch.randperm(6)
    base, count = torch.randint(0, 40, (6,)), torch.randint(0, 3, (6,))
    drafts, proposed = random_tokens((4, 6), known), random_tokens((4, 6), known, 1)
    on_device, drafts_host = drafts.cuda(), drafts.clone().pin_memory()
    for number in (1, 2, 4):
        logits = random_logits(6, vocab, dtype, number)
        cuda = strided_on_cuda(logits)
        token = pick_drafts(
            cuda, slot.cuda(), base.cuda(), count.cuda(), on_device, number, on_cuda(params), None,
            proposed.pin_memory() if number == 2 else None, None if d2t is None else d2t.cuda(),
            drafts_host=drafts_host,
        )  # fmt: skip
        expected = pick_drafts(
            logits, slot, base, count, drafts, number, params, None, proposed if number == 2 else None, d2t
        )
        assert same_bits(cuda, logits) and same_bits(token, expected) and same_bits(on_device, drafts)
        assert same_bits(drafts_host, drafts)


def advancing(device: str = "cpu") -> tuple[Tensor, ...]:
    """verified, last_token, length, proposed, drafts and, on the host, verified_host of six slots."""
    one, verified = torch.full((6,), -7), torch.full((6, 10), -7)
    slots = verified, one, one.clone(), one.clone(), torch.full((8, 6), -7)
    return (*(each.to(device) for each in slots), verified.clone().pin_memory())


@pytest.mark.parametrize("number", [1, 4])
def test_proposals_are_taken_from_the_hosts_memory(number: int) -> None:
    params, slot = tables(100), torch.randperm(6)[:5]
    proposed, drafts = random_tokens((4, 6), 100), random_tokens((4, 6), 100, 1)
    on_device = drafts.cuda()
    take_proposals_(slot, proposed, drafts, number, params)
    take_proposals_(slot.cuda(), proposed.pin_memory(), on_device, number, on_cuda(params))
    assert same_bits(on_device, drafts)
    with pytest.raises(InputError, match="pinned"):
        take_proposals_(slot.cuda(), proposed, on_device, number, on_cuda(params))


@pytest.mark.parametrize("is_counted", [False, True])
def test_slots_advance_as_on_the_cpu(is_counted: bool) -> None:
    params = tables(100)
    cuda = on_cuda(params)
    slot, base, count = torch.randperm(6)[:5], torch.arange(5) * 9 - 1, torch.arange(5)
    inputs, sampled = torch.randint(-1, 2, (5, 9)), torch.randint(-1, 101, (5, 9))
    sampled[::2, :4] = inputs[::2, 1:5]
    outcomes = []
    for device, asked in (("cpu", params), ("cuda", cuda)):
        given = [
            t.clone().to(device) for t in (sampled, slot, base, inputs, count, torch.zeros_like(sampled))
        ]
        slots = advancing(device)
        advance_slots_(*given, slots, asked, is_counted)
        outcomes.append((*given, *slots, *asked.tensors))
    assert all(same_bits(one, other) for one, other in zip(*outcomes, strict=True))


@pytest.mark.parametrize("vocab", [1, 64, 300, 128256])
def test_the_same_ends_are_suppressed_as_on_the_cpu(vocab: int) -> None:
    params = SlotParams.neutral(4, vocab, 1, 3, 1, torch.device("cpu"))
    params.ends.copy_(torch.randint(-1, vocab, (4, 3)))
    params.ends_allowed_from[:] = torch.randint(0, 9, (4,))
    slot, base = torch.randint(0, 4, (64,)), torch.randint(-1, 8, (64,))
    inputs = torch.zeros(64, 1, dtype=torch.int64)
    logits = torch.randn(64, vocab)
    logits[torch.rand(64, vocab) < 0.999] = -float("inf")
    cuda = logits.cuda()
    sample_slots_(cuda, slot.cuda(), base.cuda(), inputs.cuda(), on_cuda(params))
    sample_slots_(logits, slot, base, inputs, params)
    assert same_bits(cuda, logits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_logits_are_kept_as_on_the_cpu(dtype: torch.dtype) -> None:
    params, logits = tables(50), random_logits(32, 3001, dtype)
    kept = torch.zeros(32, 3001, dtype=dtype)
    cuda = kept.cuda()
    keep_logits_(logits, kept, SLOT, params)
    keep_logits_(strided_on_cuda(logits), cuda, SLOT.cuda(), on_cuda(params))
    assert same_bits(cuda, kept)


def test_in_a_graph() -> None:
    """Sampling, log-probabilities and verification, of which each replay goes on where the last one ended."""
    params = tables(32_000)
    params.ends_allowed_from[:], params.is_held[:] = 10, 0
    logits, slot = torch.randn(4, 32_000), torch.arange(4)
    inputs = torch.tensor([[1], [2], [1], [0]])
    cuda, graphed = on_cuda(params), logits.cuda()
    moved, values = advancing("cuda"), torch.zeros(4, 4, device="cuda")
    length, rows, first = moved[2], slot.cuda(), inputs.cuda()

    def step() -> None:
        base = length[:4]
        token = sample_slots_(graphed, rows, base, first, cuda)
        values.copy_(log_probs(graphed, rows, 3)[0])
        count = torch.zeros_like(rows)
        advance_slots_(token[:, None], rows, base.clone(), first, count, torch.zeros_like(first), moved, cuda)

    def restart() -> None:
        graphed.copy_(logits)
        for there, start in zip((*moved, *cuda.tensors), (*advancing(), *params.tensors), strict=True):
            there.copy_(start)
        length.zero_()

    stream = torch.cuda.Stream()
    restart()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    restart()
    twin, there = logits.clone(), advancing()
    there[2].zero_()
    torch.cuda.synchronize()
    for _ in range(3):
        base = there[2][:4].clone()
        token = sample_slots_(twin, slot, base, inputs, params)
        expected = log_probs(twin, slot, 3)[0]
        advance_slots_(
            token[:, None],
            slot,
            base,
            inputs,
            torch.zeros_like(slot),
            torch.zeros_like(inputs),
            there,
            params,
        )
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(graphed, twin) and same_bits(cuda.counts, params.counts)
        assert all(same_bits(one, other) for one, other in zip(moved, there, strict=True))
        torch.testing.assert_close(values.cpu(), expected)
