"""Penalties, bias and bad words on the CPU, against a row at a time in Python; and the tokens that they count."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.errors import InputError
from weft.ops.penalties import Penalties, count_tokens_, penalize_
from weft.ops.penalties_reference import penalize_reference_

INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NONE = torch.zeros(1, 0, dtype=torch.int64)


def one(value: int) -> Tensor:
    return torch.tensor([value])


def random_penalties(slots: int, vocab: int, seed: int = 0) -> Penalties:
    """Slots that ask for all sorts of things, some for nothing."""
    g = torch.Generator().manual_seed(seed)

    def sometimes(value: Tensor, neutral: float, share: float = 0.5) -> Tensor:
        return value.where(torch.rand(value.shape, generator=g) < share, neutral).contiguous()

    bias = sometimes(torch.randn(slots, vocab, generator=g) * 5, 0.0, 0.1)
    bias[torch.rand(slots, vocab, generator=g) < 0.02] = -INF
    return Penalties(
        active=torch.randint(0, 4, (slots,), generator=g).int(),
        repetition=sometimes(torch.rand(slots, generator=g) + 0.6, 1.0),
        presence=sometimes(torch.randn(slots, generator=g), 0.0),
        frequency=sometimes(torch.randn(slots, generator=g), 0.0),
        counts=sometimes(torch.randint(1, 200, (slots, vocab), generator=g), 0, 0.1).int(),
        prompt=torch.randint(-(2**31), 2**31, (slots, -(-vocab // 32)), generator=g).int(),
        bias=bias,
        biased=torch.randint(0, 2, (slots,), generator=g).int(),
        bad_words=torch.randint(-1, min(vocab, 3), (slots, 12), generator=g).int(),
        history=torch.randint(0, min(vocab, 3), (slots, 30), generator=g).int(),
    )


def random_rows(n: int, slots: int, vocab: int, known: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Logits, slot, history_length, extra and num_extra of n rows."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, vocab, generator=g) * 5
    logits[torch.rand(n, vocab, generator=g) < 0.1] = -INF
    extra = torch.randint(-1, known, (n, 4), generator=g)
    extra[: n // 2] = torch.randint(-1, min(known, 3), (n // 2, 4), generator=g)
    slot, history_length = (torch.randint(0, high, (n,), generator=g) for high in (slots, 31))
    return logits, slot, history_length, extra, torch.randint(0, 5, (n,), generator=g)


def assert_as_reference(penalties: Penalties, rows: tuple[Tensor, ...], d2t: Tensor | None = None) -> None:
    logits, slot, *context = rows
    expected = logits.clone()
    penalize_reference_(expected, slot, penalties, *context, d2t)
    penalize_(logits, slot, penalties, *context, d2t)
    assert torch.equal(logits, expected)
    assert not logits.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 33, 64, 65, 300, 1536, 32000])
def test_agrees_with_the_reference(vocab: int, dtype: torch.dtype) -> None:
    logits, *rest = random_rows(24, 8, vocab, vocab)
    assert_as_reference(random_penalties(8, vocab), (logits.to(dtype), *rest))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 33, 300, 4000])
def test_agrees_with_the_reference_on_a_drafters_vocabulary(vocab: int, dtype: torch.dtype) -> None:
    known = 3 * vocab
    d2t = torch.randperm(known, generator=torch.Generator().manual_seed(2))[:vocab] - torch.arange(vocab)
    d2t[0] = 0  # token 0, which bad words and drafts have often
    logits, *rest = random_rows(24, 8, vocab, known)
    assert_as_reference(random_penalties(8, known), (logits.to(dtype), *rest), d2t)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 200), st.integers(1, 200), st.booleans())
def test_agrees_with_the_reference_on_anything(seed: int, vocab: int, known: int, drafter: bool) -> None:
    d2t = torch.randint(-vocab, known, (vocab,), generator=torch.Generator().manual_seed(seed))
    d2t = torch.where(torch.arange(vocab) + d2t < 0, 0, d2t)
    known = max(known, vocab)
    assert_as_reference(
        random_penalties(4, known, seed), random_rows(6, 4, vocab, known, seed), d2t if drafter else None
    )


def test_any_stride_and_nothing_between_the_rows() -> None:
    for dtype in DTYPES:
        logits, *rest = random_rows(10, 4, 300, 300)
        storage = torch.zeros(10, 311, dtype=dtype)
        storage[:, 5:305] = logits
        expected = storage.clone()
        penalties = random_penalties(4, 300)
        penalize_reference_(expected[:, 5:305], rest[0], penalties, *rest[1:])
        penalize_(storage[:, 5:305], rest[0], penalties, *rest[1:])
        assert torch.equal(storage, expected)


def a_slot(vocab: int = 40, **asked: float) -> Penalties:
    """One slot that is active; numbers are those of its only row."""
    penalties = Penalties.neutral(1, vocab, 16, 20)
    penalties.active.fill_(1)
    for name, value in asked.items():
        getattr(penalties, name).fill_(value)
    return penalties


def test_each_penalty_by_hand() -> None:
    penalties = a_slot(repetition=2.0, presence=0.5, frequency=0.25)
    penalties.counts[0, 3] = 2
    penalties.prompt[0, 0] = 1 << 4
    penalties.prompt[0, 1] = 1 << 0  # token 32
    logits = torch.full((1, 40), 4.0)
    logits[0, 32] = -4.0
    extra = torch.tensor([[7, -1, 7, 8]])  # 8 is beyond the first three
    penalize_(logits, one(0), penalties, one(0), extra, one(3))
    changed = {c: float(logits[0, c]) for c in (logits[0] != 4.0).nonzero().flatten().tolist()}
    assert changed == {3: 2.0 - 0.5 - 0.5, 4: 2.0, 7: 2.0 - 0.5 - 0.5, 32: -8.0}


def test_a_bias_is_added_last_and_may_block() -> None:
    penalties = a_slot(repetition=2.0)
    penalties.counts[0, :2] = 1
    penalties.bias[0, :4] = torch.tensor([1.0, -INF, -INF, INF])
    logits = torch.tensor([[4.0, 4.0, INF, -INF, NAN]])
    for is_biased in (0, 1):
        penalties.biased.fill_(is_biased)
        row = logits.clone()
        penalize_(row, one(0), penalties, one(0), NONE, one(0))
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
    penalties = a_slot()
    penalties.bad_words[0, : len(words)] = torch.tensor(words)
    penalties.history[0, : len(committed)] = torch.tensor(committed)
    extra = torch.tensor([[*drafted, 5, 5]])
    logits = torch.zeros(1, 20)
    d2t = 2 * torch.randperm(20) - torch.arange(20) if with_d2t else None
    tokens = torch.arange(20) + (0 if d2t is None else d2t)
    penalize_(logits, one(0), penalties, one(len(committed)), extra, one(len(drafted)), d2t)
    expected = sorted(t for t in blocked if t in tokens.tolist())
    assert sorted(tokens[logits[0] == -INF].tolist()) == expected


def test_a_history_that_is_not_kept_completes_no_word() -> None:
    penalties = a_slot()
    penalties.bad_words[0, :3] = torch.tensor([1, 2, -1])
    penalties.history.fill_(1)
    for length, is_blocked in ((20, True), (21, False)):
        logits = torch.zeros(1, 40)
        penalize_(logits, one(0), penalties, one(length), NONE, one(0))
        assert (logits[0, 2] == -INF) == is_blocked


def test_rows_that_ask_for_nothing_are_left_alone() -> None:
    penalties = random_penalties(4, 100)
    penalties.active.zero_()
    logits, slot, *context = random_rows(12, 4, 100, 100)
    slot[:2] = torch.tensor([-1, 4])
    before = logits.clone()
    penalize_(logits, slot, penalties, *context)
    assert torch.equal(logits, before)
    penalties.active.fill_(1)
    penalize_(logits, slot, penalties, *context)
    assert torch.equal(logits[:2], before[:2]) and not torch.equal(logits[2:], before[2:])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_its_batch(threads: int) -> None:
    penalties, (logits, slot, *context) = random_penalties(8, 6001), random_rows(40, 8, 6001, 6001)
    alone = logits.clone()
    for i in range(40):
        penalize_(alone[i : i + 1], slot[i : i + 1], penalties, *[c[i : i + 1] for c in context])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        penalize_(logits, slot, penalties, *context)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(logits, alone)


def test_tokens_are_counted_and_appended() -> None:
    penalties = Penalties.neutral(3, 10, 4, 5)
    tokens = torch.tensor([[1, 1, 9], [2, -1, 10], [3, 4, 5]])
    count_tokens_(
        penalties, torch.tensor([0, 2, -1]), tokens, torch.tensor([2, 3, 3]), torch.tensor([0, 3, 0])
    )
    assert penalties.history.tolist() == [[1, 1, -1, -1, -1], [-1] * 5, [-1, -1, -1, 2, -1]]
    assert penalties.counts.nonzero().tolist() == [[0, 1], [2, 2]]
    assert int(penalties.counts[0, 1]) == 2
    count_tokens_(penalties, torch.tensor([0]), torch.tensor([[1]]), torch.tensor([1]), torch.tensor([2]))
    assert int(penalties.counts[0, 1]) == 3 and penalties.history[0].tolist() == [1, 1, 1, -1, -1]


def test_counting_what_was_drafted_changes_nothing() -> None:
    """A row behind drafts is penalised as the row that stands there once they are committed."""
    penalties = random_penalties(1, 50, 5)
    penalties.active.fill_(1)
    drafts = torch.tensor([[1, 2, 1, 0]])
    logits = torch.randn(1, 50)
    ahead = logits.clone()
    penalize_(ahead, one(0), penalties, one(9), drafts, one(4))
    count_tokens_(penalties, one(0), drafts, one(4), one(9))
    penalize_(logits, one(0), penalties, one(13), NONE, one(0))
    assert torch.equal(logits, ahead)


def test_says_what_is_wrong() -> None:
    penalties = Penalties.neutral(2, 8, 4, 5)
    for field in fields(penalties):
        tensor = getattr(penalties, field.name)
        with pytest.raises(InputError, match=f"{field.name} must be"):
            replace(penalties, **{field.name: tensor.double()})
    with pytest.raises(InputError, match=r"prompt must be \[2, 1\] int32"):
        replace(penalties, prompt=torch.zeros(2, 2, dtype=torch.int32))
    logits, slot, extra = (
        torch.zeros(2, 8),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, 3, dtype=torch.int64),
    )
    with pytest.raises(InputError, match="logits must be float32"):
        penalize_(logits.double(), slot, penalties, slot, extra, slot)
    with pytest.raises(InputError, match="last dimension of logits"):
        penalize_(torch.zeros(8, 2).T, slot, penalties, slot, extra, slot)
    with pytest.raises(InputError, match="extra must be"):
        penalize_(logits, slot, penalties, slot, extra[:, ::2], slot)
    with pytest.raises(InputError, match=r"d2t must be \[8\] int64"):
        penalize_(logits, slot, penalties, slot, extra, slot, slot)
    with pytest.raises(InputError, match="tokens must be"):
        count_tokens_(penalties, slot, extra.int(), slot, slot)


def test_is_opaque_under_fake_cuda_tensors() -> None:
    with FakeTensorMode():
        penalties = Penalties.neutral(2, 64, 4, 5, "cuda")
        slot = torch.zeros(3, dtype=torch.int64, device="cuda")
        extra = torch.zeros(3, 2, dtype=torch.int64, device="cuda")
        penalize_(torch.zeros(3, 64, device="cuda"), slot, penalties, slot, extra, slot)
        count_tokens_(penalties, slot, extra, slot, slot)
        with pytest.raises(InputError, match="the penalties are on cuda"):
            penalize_(torch.zeros(3, 64), slot.cpu(), penalties, slot.cpu(), extra.cpu(), slot.cpu())
