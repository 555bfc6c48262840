"""Penalties, bias and bad words by slot on the CPU, by what is left of the logits; and the tokens that they count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.kernels.penalties import level_reference_, penalize_reference_
from support.kernels.random_slots import DTYPES, random_logits, random_params, random_tokens, same_bits
from support.kernels.rows import rows_params
from support.kernels.slots import pick_drafts
from weft.ops.slots import SlotParams, advance_slots_, sample_slots_

INF, NAN = float("inf"), float("nan")


def penalised(slots: int, vocab: int, seed: int = 0) -> SlotParams:
    """Slots of any parameters, but for min_tokens."""
    params = random_params(slots, vocab, seed)
    params.ends_allowed_from[:] = 0
    return params


def assert_targets_are_the_references(
    logits: Tensor, params: SlotParams, known: int, width: int = 5, seed: int = 0
) -> None:
    """Of rows in any slots, after as many tokens as their texts have or fewer, at positions with 0 to 4 drafts."""
    g = torch.Generator().manual_seed(seed)
    rows = len(logits) // width
    slot = torch.randint(-1, len(params.ends) + 1, (rows,), generator=g)
    base = torch.randint(-1, 30, (rows,), generator=g)
    inputs = random_tokens((rows, width), known, seed)
    expected = logits.clone()
    each = [t.repeat_interleave(width, 0) for t in (slot, base + 1, inputs[:, 1:])]
    seen = torch.arange(width).repeat(rows)
    penalize_reference_(expected, each[0], params, each[1], each[2], seen)
    level_reference_(expected, each[0], params)
    sample_slots_(logits, slot, base, inputs, params)
    assert same_bits(logits, expected)
    assert not logits.isnan().any()


def assert_drafts_are_the_references(
    logits: Tensor, params: SlotParams, known: int, d2t: Tensor | None, seed: int = 0
) -> None:
    """The same after 0 to 3 drafts, with the drafter's own vocabulary."""
    g = torch.Generator().manual_seed(seed)
    slots, rows = len(params.ends), len(logits)
    slot, drafts = torch.arange(rows) % slots, random_tokens((4, slots), known, seed)
    base = torch.randint(-2, 27, (rows,), generator=g)
    count = torch.randint(0, 3, (rows,), generator=g)
    for number in (1, 2, 3, 4):
        changed, expected = logits.clone(), logits.clone()
        extra, seen = drafts[: number - 1].T[slot], torch.full((rows,), number - 1)
        penalize_reference_(expected, slot, params, base + count + 2, extra, seen, d2t)
        level_reference_(expected, slot, params)
        pick_drafts(changed, slot, base, count, drafts, number, params, d2t=d2t)
        assert same_bits(changed, expected)
        assert not changed.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 33, 64, 65, 300, 1536, 32000])
def test_agrees_with_the_reference(vocab: int, dtype: torch.dtype) -> None:
    assert_targets_are_the_references(random_logits(60, vocab, dtype), penalised(8, vocab), vocab)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 33, 300, 4000])
def test_agrees_with_the_reference_on_a_drafters_vocabulary(vocab: int, dtype: torch.dtype) -> None:
    known = 3 * vocab
    d2t = torch.randperm(known, generator=torch.Generator().manual_seed(2))[:vocab] - torch.arange(vocab)
    d2t[0] = 0  # token 0, which bad words and drafts have often
    logits = random_logits(8, vocab, dtype)
    assert_drafts_are_the_references(logits, penalised(9, known), known, d2t)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_agrees_with_the_reference_on_anything(seed: int, vocab: int, known: int, drafter: bool) -> None:
    d2t = torch.randint(-vocab, known, (vocab,), generator=torch.Generator().manual_seed(seed))
    d2t = torch.where(torch.arange(vocab) + d2t < 0, 0, d2t)
    known = max(known, vocab)
    params = penalised(5, known, seed)
    assert_targets_are_the_references(random_logits(6, vocab, seed=seed), params, known, 3, seed)
    assert_drafts_are_the_references(
        random_logits(4, vocab, seed=seed), params, known, d2t if drafter else None, seed
    )


def test_any_stride_and_nothing_between_the_rows() -> None:
    for dtype in DTYPES:
        storage = torch.zeros(40, 311, dtype=dtype)
        storage[:, 5:305] = random_logits(40, 300, dtype)
        before = storage.clone()
        assert_targets_are_the_references(storage[:, 5:305], penalised(4, 300), 300)
        assert torch.equal(storage[:, :5], before[:, :5]) and torch.equal(storage[:, 305:], before[:, 305:])
        assert not torch.equal(storage, before)


def a_slot(
    vocab: int = 40, repetition: float = 1.0, presence: float = 0.0, frequency: float = 0.0
) -> SlotParams:
    """One slot that is penalised."""
    params = rows_params(1, vocab, bad_words=16, max_length=20)
    params.repetition_penalty[0], params.presence_penalty[0] = repetition, presence
    params.frequency_penalty[0] = frequency
    params.changes_logits[:] = 1
    params.history.fill_(-1)
    return params


def penalise(
    logits: Tensor,
    params: SlotParams,
    committed: int = 0,
    drafted: tuple[int, ...] = (),
    d2t: Tensor | None = None,
) -> None:
    """Change one row of logits [1, V] in slot 0, after so many tokens of its text and these drafts, by both ways."""
    slot, drafts = torch.zeros(1, dtype=torch.int64), torch.tensor([[t, -1] for t in (*drafted, 5)])
    params.max_drafts[:] = len(drafts)
    if d2t is None:
        rows = torch.cat((logits,) * len(drafts))
        inputs = torch.tensor([[0, *drafted]])
        sample_slots_(rows, slot, slot + committed - 1, inputs, params)
        pick_drafts(logits, slot, slot + committed - 2, slot, drafts, len(drafts), params)
        assert same_bits(rows[-1:], logits)
    else:
        pick_drafts(logits, slot, slot + committed - 2, slot, drafts, len(drafts), params, d2t=d2t)


def test_each_penalty_by_hand() -> None:
    params = a_slot(repetition=2.0, presence=0.5, frequency=0.25)
    params.counts[0, 3] = 2
    params.prompt[0, 0] = 1 << 4
    params.prompt[0, 1] = 1 << 0  # token 32
    logits = torch.full((1, 40), 4.0)
    logits[0, 32] = -4.0
    penalise(logits, params, drafted=(7, -1, 7))
    changed = {c: float(logits[0, c]) for c in (logits[0] != 4.0).nonzero().flatten().tolist()}
    assert changed == {3: 2.0 - 0.5 - 0.5, 4: 2.0, 7: 2.0 - 0.5 - 0.5, 32: -8.0}


def test_a_draft_counts_for_those_after_it_alone() -> None:
    params = a_slot(presence=1.0)
    logits = torch.zeros(3, 40)
    slot = torch.zeros(1, dtype=torch.int64)
    sample_slots_(logits, slot, slot, torch.tensor([[4, 7, 8]]), params)
    assert [(row != 0).nonzero().flatten().tolist() for row in logits] == [[], [7], [7, 8]]


def test_a_bias_is_added_last_and_may_block() -> None:
    params = a_slot(repetition=2.0)
    params.counts[0, :2] = 1
    params.bias[0, :4] = torch.tensor([1.0, -INF, -INF, INF])
    logits = torch.tensor([[4.0, 4.0, INF, -INF, NAN]])
    for is_biased in (0, 1):
        params.bias_kind[:] = is_biased
        row = logits.clone()
        penalise(row, params)
        expected = [3.0, -INF, -INF, -INF] if is_biased else [2.0, 2.0, INF, -INF]
        assert row[0, :4].tolist() == expected and row[0, 4].isnan()


@pytest.mark.parametrize(
    ("words", "committed", "drafted", "blocked"),
    [
        ([5, -1, 6, -1], [], [], [5, 6]),
        ([1, 2, -1], [1], [], [2]),
        ([1, 2, -1], [2, 1], [3], []),
        ([1, 2, 3, -1], [9, 1], [2], [3]),
        ([1, 2, 3, -1], [9], [-1, 1, -1, 2], [3]),
        ([1, 2, 3, -1], [2], [], []),  # longer than the context
        ([1, 1, -1, 4, 2, -1], [1], [], [1]),
        ([7, -1, -1, 8, -1], [], [], [7]),  # the list has ended
        ([-1, 8, -1], [], [], []),
        ([*range(15), 15], [*range(15)], [], [15]),  # the end of the row ends it
    ],
)
@pytest.mark.parametrize("with_d2t", [False, True])
def test_bad_words(
    words: list[int], committed: list[int], drafted: list[int], blocked: list[int], with_d2t: bool
) -> None:
    params = a_slot()
    params.bad_words.fill_(-1)
    params.bad_words[0, : len(words)] = torch.tensor(words)
    params.history[0, : len(committed)] = torch.tensor(committed)
    logits = torch.zeros(1, 20)
    d2t = 2 * torch.randperm(20) - torch.arange(20) if with_d2t else None
    tokens = torch.arange(20) + (0 if d2t is None else d2t)
    penalise(logits, params, len(committed), tuple(drafted), d2t)
    expected = sorted(t for t in blocked if t in tokens.tolist())
    assert sorted(tokens[logits[0] == -INF].tolist()) == expected


def test_a_history_that_is_not_kept_completes_no_word() -> None:
    params = a_slot()
    params.bad_words[0, :3] = torch.tensor([1, 2, -1])
    params.history.fill_(1)
    for length, is_blocked in ((20, True), (21, False)):
        logits = torch.zeros(1, 40)
        penalise(logits, params, length)
        assert (logits[0, 2] == -INF) == is_blocked


def advance(params: SlotParams, slot: Tensor, tokens: Tensor, count: Tensor, position: Tensor) -> None:
    """Commit the first count[i] of tokens[i] from position[i] on; the last slot of them pads."""
    slots, width = len(params.ends), tokens.shape[1]
    many = torch.zeros(slots, width + 1, dtype=torch.int64)
    one = many[:, 0].clone()
    moved = (many, one, one.clone(), one.clone(), one.new_zeros(width, slots), many.clone())
    advance_slots_(
        tokens, slot, position - 1, tokens.clone(), count - 1, tokens.clone(), moved, params, is_counted=True
    )


def test_tokens_are_counted_and_appended() -> None:
    params = rows_params(3, 10, max_length=5)
    params.history.fill_(-1)
    params.changes_logits[:] = torch.tensor([1, 0, 1, 1])
    tokens = torch.tensor([[1, 1, 9], [2, -1, 10], [3, 4, 5], [6, 6, 6]])
    slot, count = torch.tensor([0, 2, -1, 1]), torch.tensor([2, 3, 3, 3])
    advance(params, slot, tokens, count, torch.tensor([0, 3, 0, 0]))
    kept = [[1, 1, -1, -1, -1], [-1] * 5, [-1, -1, -1, 2, -1], [-1] * 5]
    assert params.history.tolist() == kept  # slot 1 has no penalties
    assert params.counts.nonzero().tolist() == [[0, 1], [2, 2]]
    assert int(params.counts[0, 1]) == 2
    one = torch.ones(1, dtype=torch.int64)
    advance(params, one - 1, one[None], one, one + 1)
    assert int(params.counts[0, 1]) == 3 and params.history[0].tolist() == [1, 1, 1, -1, -1]


def test_counting_what_was_drafted_changes_nothing() -> None:
    """A row behind drafts is penalised as the row that stands there once they are committed."""
    params = penalised(2, 50, 5)
    params.changes_logits[:] = 1
    drafts = torch.tensor([[1, 2, 1, 0]])
    slot, base = torch.zeros(1, dtype=torch.int64), torch.tensor([8])
    logits = torch.randn(1, 50)
    ahead = logits.repeat(5, 1)
    sample_slots_(ahead, slot, base, torch.tensor([[0, 1, 2, 1, 0]]), params)
    advance(params, slot, drafts, torch.tensor([4]), base + 1)
    sample_slots_(logits, slot, base + 4, slot[None], params)
    assert torch.equal(logits, ahead[4:])


def test_rows_that_ask_for_nothing_are_left_alone() -> None:
    params = penalised(5, 100)
    logits = random_logits(12, 100)
    slot, base = torch.tensor([*range(4)] * 3), torch.full((12,), 7)
    before = logits.clone()
    for active in ((0, 0, 0, 0, 0), (1, 0, 1, 0, 0)):
        params.changes_logits[:] = torch.tensor(active)
        sample_slots_(logits, slot, base, torch.zeros(12, 1, dtype=torch.int64), params)
        left = params.changes_logits[slot] == 0
        assert torch.equal(logits[left], before[left])
    assert not torch.equal(logits, before)
