"""N-grams that come once, by slot on the CPU: against a set of all that a text has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.kernels.penalties import repeating_tokens
from support.kernels.rows import rows_params
from support.kernels.slots import pick_drafts
from weft.ops.slots import SlotParams, sample_slots_

INF = float("inf")
VOCAB = 9


def a_text(text: list[int], size: int, room: int = 30) -> SlotParams:
    """One slot whose text so far is this, and asks for nothing else."""
    params = rows_params(1, VOCAB, max_length=room)
    params.changes_logits[:], params.no_repeat_ngram_size[:] = 1, size
    params.history[0, : len(text)] = torch.tensor(text, dtype=torch.int32)
    return params


def blocked(logits: Tensor) -> set[int]:
    return set((logits == -INF).nonzero().flatten().tolist())


def blocked_at_each(params: SlotParams, length: int, drafts: list[int]) -> list[set[int]]:
    """What is blocked after a text of this length and none, one, and more of the drafts."""
    logits, slot = torch.zeros(len(drafts) + 1, VOCAB), torch.zeros(1, dtype=torch.int64)
    sample_slots_(logits, slot, slot + length - 1, torch.tensor([[0, *drafts]]), params)
    return [blocked(row) for row in logits]


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ([1, 2, 3, 1, 2], 3, {3}),
        ([1, 2, 3, 1, 2], 2, {3}),
        ([1, 2, 1, 3, 1], 2, {2, 3}),
        ([1, 2, 3, 1, 2], 1, {1, 2, 3}),
        ([1, 2, 3, 1, 2], 4, set()),
        ([4, 4, 4], 2, {4}),
        ([4, 4, 4], 3, {4}),
        ([4, 4, 4], 4, set()),
        ([1, 2, 3, 1, 2], 0, set()),
        ([1, 2, 3, 1, 2], 6, set()),
        ([5], 2, set()),
        ([], 1, set()),
    ],
)
def test_by_hand(text: list[int], size: int, expected: set[int]) -> None:
    assert blocked_at_each(a_text(text, size), len(text), []) == [expected]
    assert repeating_tokens(text, size) == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(-1, 3), max_size=4), st.integers(0, 5))
def test_drafts_before_a_position_are_text(text: list[int], drafts: list[int], size: int) -> None:
    said = [[*text, *(t for t in drafts[:n] if t >= 0)] for n in range(len(drafts) + 1)]
    found = blocked_at_each(a_text(text, size), len(text), drafts)
    assert found == [repeating_tokens(each, size) for each in said]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.integers(1, 3), st.integers(0, 99))
def test_a_drafter_has_its_own_vocabulary(text: list[int], size: int, seed: int) -> None:
    d2t = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:5] - torch.arange(5)
    tokens = (torch.arange(5) + d2t).tolist()
    params, logits = a_text(text, size), torch.zeros(1, 5)
    params.max_drafts[:] = 2
    slot, drafts = torch.zeros(1, dtype=torch.int64), torch.tensor([[1, -1], [-1, -1]])
    pick_drafts(logits, slot, slot + len(text) - 2, slot, drafts, 2, params, d2t=d2t)
    expected = repeating_tokens([*text, 1], size)
    assert {tokens[c] for c in blocked(logits[0])} == expected & set(tokens)


def test_a_text_that_is_not_kept_repeats_nothing() -> None:
    params = a_text([1] * 8, 2, room=8)
    assert blocked_at_each(params, 8, []) == [{1}]
    assert blocked_at_each(params, 9, [1]) == [set(), set()]


def test_what_leaves_nothing_gives_no_token() -> None:
    params, slot = a_text([*range(VOCAB)], 1), torch.zeros(1, dtype=torch.int64)
    token = sample_slots_(torch.zeros(1, VOCAB), slot, slot + VOCAB - 1, slot[None], params)
    assert token.tolist() == [-1]
