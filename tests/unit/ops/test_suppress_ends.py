"""min_tokens on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import InputError
from weft.ops.suppress_ends import suppress_ends_, suppress_ends_reference_

INF, NAN = float("inf"), float("nan")
ENDS = torch.tensor([[3, -1], [0, 90], [-1, -1], [5, 5]], dtype=torch.int32)
UNTIL = torch.tensor([4, 10, 10, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 31, 33, 64, 65, 300, 32000])
def test_agrees_with_the_reference(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    ends = torch.randint(-1, vocab, (5, 3), generator=generator).int()
    until, slot = (
        torch.randint(0, 9, (5,), generator=generator),
        torch.randint(0, 5, (64,), generator=generator),
    )
    position = torch.randint(0, 9, (64,), generator=generator)
    storage = torch.randn(64, vocab + 5, generator=generator).to(dtype)
    logits = storage[:, 2 : vocab + 2]
    blocked = torch.rand(64, 1, generator=generator).round() * 0.999 + 0.001
    logits[torch.rand(64, vocab, generator=generator) < blocked] = -INF
    logits[torch.rand(64, vocab, generator=generator) < 0.01] = NAN
    expected = storage.clone()
    suppress_ends_reference_(expected[:, 2 : vocab + 2], slot, ends, until, position)
    suppress_ends_(logits, slot, ends, until, position)
    assert torch.equal(storage.view(torch.int8), expected.view(torch.int8))


def test_blocks_ends_before_their_time() -> None:
    logits = torch.zeros(5, 100)
    suppress_ends_(logits, torch.tensor([0, 0, 1, 2, 3]), ENDS, UNTIL, torch.tensor([3, 4, 9, 0, 0]))
    assert (logits == -INF).nonzero().tolist() == [[0, 3], [2, 0], [2, 90]]


def test_the_grammar_beats_min_tokens() -> None:
    logits = torch.full((3, 100), -INF)
    logits[:, 90] = 1.0
    logits[1, 7] = NAN
    logits[2, 99] = -3e38
    suppress_ends_(logits, torch.ones(3, dtype=torch.int64), ENDS, UNTIL, torch.zeros(3, dtype=torch.int64))
    assert logits[:, 90].tolist() == [1.0, 1.0, -INF]


def test_ends_and_slots_out_of_bounds_are_left_alone() -> None:
    logits = torch.zeros(3, 50)
    suppress_ends_(logits, torch.tensor([1, -1, 4]), ENDS, UNTIL, torch.zeros(3, dtype=torch.int64))
    assert (logits == -INF).nonzero().tolist() == [[0, 0]]


def test_says_what_is_wrong() -> None:
    logits, slot = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(InputError, match="ends must be"):
        suppress_ends_(logits, slot, ENDS.long(), UNTIL, slot)
    with pytest.raises(InputError, match=r"until must be \[4\]"):
        suppress_ends_(logits, slot, ENDS, slot, slot)
    with pytest.raises(InputError, match="last dimension of logits"):
        suppress_ends_(torch.zeros(8, 2).T, slot, ENDS, UNTIL, slot)


def test_is_opaque_under_fake_cuda_tensors() -> None:
    with FakeTensorMode():

        def on_cuda(like: Tensor) -> Tensor:
            return torch.zeros(like.shape, dtype=like.dtype, device="cuda")

        slot = torch.zeros(2, dtype=torch.int64, device="cuda")
        suppress_ends_(torch.zeros(2, 8, device="cuda"), slot, on_cuda(ENDS), on_cuda(UNTIL), slot)
