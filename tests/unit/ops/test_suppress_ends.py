"""min_tokens by slot on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.kernels.penalties import suppress_ends_reference_
from support.kernels.random_slots import DTYPES, same_bits
from support.kernels.slots import pick_drafts
from weft.ops.slots import SlotParams, sample_slots_

INF, NAN = float("inf"), float("nan")
ENDS = torch.tensor([[3, -1], [0, 90], [-1, -1], [5, 5]], dtype=torch.int32)
UNTIL = torch.tensor([4, 10, 10, 0])


def a_table(ends: Tensor, until: Tensor, vocab: int) -> SlotParams:
    """Slots that ask for nothing but min_tokens."""
    params = SlotParams.neutral(len(ends) + 1, vocab, 1, ends.shape[1], 1, torch.device("cpu"))
    params.ends[:-1].copy_(ends)
    params.ends_allowed_from[:-1] = until
    return params


def suppress(logits: Tensor, slot: Tensor, params: SlotParams, position: Tensor) -> None:
    """By sampling the tokens at these positions."""
    sample_slots_(logits, slot, position - 1, torch.zeros(len(slot), 1, dtype=torch.int64), params)


@pytest.mark.parametrize("dtype", DTYPES)
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
    expected, params = storage.clone(), a_table(ends, until, vocab)
    suppress_ends_reference_(expected[:, 2 : vocab + 2], slot, params, position)
    suppress(logits, slot, params, position)
    assert same_bits(storage, expected)


def test_blocks_ends_before_their_time() -> None:
    logits = torch.zeros(5, 100)
    params = a_table(ENDS, UNTIL, 100)
    suppress(logits, torch.tensor([0, 0, 1, 2, 3]), params, torch.tensor([3, 4, 9, 0, 0]))
    assert (logits == -INF).nonzero().tolist() == [[0, 3], [2, 0], [2, 90]]


def test_each_position_has_its_own_time() -> None:
    """Positions after drafts are later ones; drafts themselves may end a text that has no end yet."""
    params, slot = a_table(ENDS, UNTIL, 100), torch.tensor([0])
    logits = torch.zeros(4, 100)
    sample_slots_(logits, slot, torch.tensor([1]), torch.zeros(1, 4, dtype=torch.int64), params)
    assert (logits == -INF).nonzero().tolist() == [[0, 3], [1, 3]]
    draft, drafts = torch.zeros(1, 100), torch.zeros(1, 5, dtype=torch.int64)
    pick_drafts(draft, slot, slot, slot, drafts, 1, params)
    assert not draft.any()


def test_the_grammar_beats_min_tokens() -> None:
    logits = torch.full((3, 100), -INF)
    logits[:, 90] = 1.0
    logits[1, 7] = NAN
    logits[2, 99] = -3e38
    suppress(logits, torch.ones(3, dtype=torch.int64), a_table(ENDS, UNTIL, 100), torch.zeros(3).long())
    assert logits[:, 90].tolist() == [1.0, 1.0, -INF]


def test_ends_and_slots_out_of_bounds_are_left_alone() -> None:
    logits = torch.zeros(3, 50)
    params = a_table(ENDS, UNTIL, 50)
    suppress(logits, torch.tensor([1, -1, 5]), params, torch.zeros(3, dtype=torch.int64))
    assert (logits == -INF).nonzero().tolist() == [[0, 0]]
