"""The mask operations on the CPU, against torch's own masked_fill."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from support.captured import Captured
from support.products import rest_slow
from weft.errors import InputError
from weft.ops.token_mask import apply_token_bitmask_, copy_mask_rows

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
INF = float("inf")


def apply_token_bitmask_reference_(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> None:
    """`apply_token_bitmask_` in plain torch."""
    n, vocab = logits.shape
    tokens_V = torch.arange(vocab, device=logits.device) + (0 if d2t is None else d2t)
    masks_NW = bitmask[:n] if rows is None else bitmask[rows.long()]
    covered_V = (tokens_V >= 0) & (tokens_V < 32 * bitmask.shape[1])
    tokens_V = tokens_V.where(covered_V, 0)
    allowed_NV = covered_V & (masks_NW[:, tokens_V // 32] >> (tokens_V % 32) & 1).bool()
    if token_mask is not None:
        allowed_NV |= (token_mask == 0)[:, None]
    logits.masked_fill_(~allowed_NV, float("-inf"))


def pack(allowed: Tensor, padding: int = 0) -> Tensor:
    """Words [m, ceil(vocab / 32)] of a bool tensor [m, vocab]; bits beyond the vocabulary are `padding`."""
    m, vocab = allowed.shape
    bits = torch.full((m, -(-vocab // 32) * 32), padding, dtype=torch.int64)
    bits[:, :vocab] = allowed
    words = (bits.view(m, -1, 32) << torch.arange(32)).sum(-1)
    return words.where(words < 2**31, words - 2**32).to(torch.int32)


def random_allowed(rows: int, vocab: int, seed: int = 0) -> Tensor:
    """Rows of all densities, with runs of words that are all set or all clear."""
    generator = torch.Generator().manual_seed(seed)
    density = torch.tensor([0.5, 0.001, 0.99, 0.0, 1.0]).repeat(rows // 5 + 1)[:rows, None]
    allowed = torch.rand(rows, vocab, generator=generator) < density
    allowed[:, : vocab // 3 // 32 * 32] = torch.rand(rows, 1, generator=generator) < 0.5
    return allowed


def masked(logits: Tensor, allowed: Tensor) -> Tensor:
    return logits.masked_fill(~allowed, -INF)


@rest_slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 2048, 128000, 128001])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_blocks_what_the_mask_does_not_allow(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits, allowed = torch.randn(rows, vocab).to(dtype), random_allowed(rows, vocab)
    expected = masked(logits, allowed)
    apply_token_bitmask_(logits, pack(allowed))
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [1, 2, 3, 5, 7])
def test_any_stride_and_any_alignment(offset: int, dtype: torch.dtype) -> None:
    rows, vocab, stride = 5, 1003, 1031
    storage = torch.randn(offset + rows * stride).to(dtype)
    untouched = storage.clone()
    logits = storage[offset:].as_strided((rows, vocab), (stride, 1))
    allowed = random_allowed(rows, vocab)
    bitmask = torch.zeros(rows, 40, dtype=torch.int32)[:, 3 : 3 + 32]
    bitmask.copy_(pack(allowed))
    expected = masked(logits, allowed)
    apply_token_bitmask_(logits, bitmask)
    assert torch.equal(logits, expected)
    logits.copy_(untouched[offset:].as_strided((rows, vocab), (stride, 1)))
    assert torch.equal(storage, untouched), "something between the rows was written"


def test_one_mask_row_for_all_by_a_stride_of_zero() -> None:
    allowed = random_allowed(1, 100)
    logits = torch.randn(4, 100)
    expected = masked(logits, allowed.expand(4, 100))
    apply_token_bitmask_(logits, pack(allowed).expand(4, 4))
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_pick_mask_rows(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    logits, allowed = torch.randn(6, 77).to(dtype), random_allowed(9, 77)
    rows = torch.tensor([8, 0, 3, 3, 5, 1], dtype=index_dtype)
    expected = masked(logits, allowed[rows.long()])
    apply_token_bitmask_(logits, pack(allowed), rows)
    assert torch.equal(logits, expected)


def test_a_token_mask_of_zero_leaves_the_row_alone() -> None:
    logits, allowed = torch.randn(6, 77), random_allowed(6, 77)
    token_mask = torch.tensor([1, 0, 1, 0, 0, -1], dtype=torch.int32)
    expected = torch.where(token_mask[:, None] != 0, masked(logits, allowed), logits)
    apply_token_bitmask_(logits, pack(allowed), token_mask=token_mask)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [4, 128, 2048, 128000, 9001])
def test_d2t_offsets_name_the_target_tokens(vocab: int, dtype: torch.dtype) -> None:
    draft_vocab = vocab // 4
    targets = torch.randperm(vocab, generator=torch.Generator().manual_seed(1))[:draft_vocab]
    d2t = targets - torch.arange(draft_vocab)
    logits, allowed = torch.randn(3, draft_vocab).to(dtype), random_allowed(3, vocab)
    expected = masked(logits, allowed[:, targets])
    apply_token_bitmask_(logits, pack(allowed), d2t=d2t)
    assert torch.equal(logits, expected)


def test_d2t_out_of_the_mask_is_blocked() -> None:
    logits = torch.zeros(1, 5)
    d2t = torch.tensor([0, 63 - 1, 64 - 2, -4, -(2**62)])  # targets 0, 63, 64, -1 and far below
    apply_token_bitmask_(logits, torch.full((1, 2), -1, dtype=torch.int32), d2t=d2t)
    assert logits.tolist() == [[0, 0, -INF, -INF, -INF]]


def test_d2t_of_whole_words_is_blocked_out_of_the_mask() -> None:
    columns = torch.arange(96)
    targets = torch.tensor([0, 63, 64, -1, 2**31, 2**32 + 5, -(2**62), 31, 32, 2**62]).repeat(10)[:96]
    logits = torch.zeros(1, 96)
    apply_token_bitmask_(logits, torch.full((1, 2), -1, dtype=torch.int32), d2t=targets - columns)
    assert torch.equal(logits[0] == 0, (targets >= 0) & (targets < 64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("padding", [0, 1])
def test_padding_bits_mean_nothing(padding: int, dtype: torch.dtype) -> None:
    storage = torch.zeros(2, 64, dtype=dtype)
    logits, allowed = storage[:, :33], torch.zeros(2, 33, dtype=torch.bool)
    allowed[1] = True
    apply_token_bitmask_(logits, pack(allowed, padding))
    assert torch.equal(logits, masked(torch.zeros(2, 33, dtype=dtype), allowed))
    assert (storage[:, 33:] == 0).all()


def test_the_mask_may_have_more_words_than_the_logits_need() -> None:
    logits = torch.zeros(1, 40)
    apply_token_bitmask_(logits, torch.tensor([[0, 1, -1, -1]], dtype=torch.int32))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [32]


@pytest.mark.parametrize("words", [0, 1, 2])
def test_columns_beyond_the_mask_are_blocked(words: int) -> None:
    logits = torch.zeros(2, 70)
    apply_token_bitmask_(logits, torch.full((2, words), -1, dtype=torch.int32))
    assert (logits[:, : 32 * words] == 0).all()
    assert (logits[:, 32 * words :] == -INF).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bit", [0, 15, 16, 30, 31])
def test_each_end_of_a_word(bit: int, dtype: torch.dtype) -> None:
    word = (1 << bit) - (2**32 if bit == 31 else 0)
    logits = torch.zeros(1, 64, dtype=dtype)
    apply_token_bitmask_(logits, torch.tensor([[word, ~word]], dtype=torch.int32))
    assert (logits[0] == 0).nonzero().flatten().tolist() == [bit, *(32 + j for j in range(32) if j != bit)]


def test_allowed_logits_keep_their_bits() -> None:
    special = torch.tensor([float("nan"), INF, -INF, -0.0, 1e-45]).repeat(2, 20)
    before = special.view(torch.int32).clone()
    allowed = torch.ones(2, 100, dtype=torch.bool)
    allowed[:, 50] = False
    apply_token_bitmask_(special, pack(allowed))
    changed = (special.view(torch.int32) != before).nonzero()
    assert changed.tolist() == [[0, 50], [1, 50]]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_large_calls(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        logits, allowed = torch.randn(41, 32768), random_allowed(41, 32768)
        expected = masked(logits, allowed)
        apply_token_bitmask_(logits, pack(allowed))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(logits, expected)


def test_no_rows_and_no_columns_are_fine() -> None:
    apply_token_bitmask_(torch.zeros(0, 50), torch.zeros(0, 2, dtype=torch.int32))
    apply_token_bitmask_(torch.zeros(3, 0), torch.zeros(3, 0, dtype=torch.int32))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_agrees_with_the_reference(data: st.DataObject) -> None:
    n, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    vocab, words = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 7))
    seed, offset = data.draw(st.integers(0, 2**31)), data.draw(st.integers(0, 7))
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(low, high, shape, generator=generator).to(dtype)

    storage = torch.randn(n * (vocab + 9) + offset, generator=generator)
    storage = storage.to(data.draw(st.sampled_from(DTYPES)))
    logits = storage[offset:].as_strided((n, vocab), (vocab + 9, 1))
    bitmask = integers(-(2**31), 2**31, m, words, dtype=torch.int32)
    bitmask[integers(0, 2, m, words).bool()] = data.draw(st.sampled_from([-1, 0]))
    rows = integers(0, m, n, dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    flags = data.draw(st.sampled_from([None, integers(0, 2, n, dtype=torch.int32)]))
    d2t = data.draw(st.sampled_from([None, integers(-vocab, 32 * words + 5, vocab)]))
    expected = logits.clone()
    apply_token_bitmask_reference_(expected, bitmask, rows, flags, d2t)
    apply_token_bitmask_(logits, bitmask, rows, flags, d2t)
    assert torch.equal(logits, expected)


def _int32(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(2, 64, dtype=torch.float64), _int32(2, 2)), "float32, float16 or bfloat16"),
        ((torch.zeros(64), _int32(1, 2)), r"must be \[n, vocab\]"),
        ((torch.zeros(64, 2).T, _int32(2, 2)), "last dimension of logits must be contiguous"),
        ((torch.zeros(2, 64), torch.zeros(2, 2)), "bitmask must be int32 words"),
        ((torch.zeros(2, 64), _int32(2)), r"bitmask must be \[m, words\]"),
        ((torch.zeros(2, 64), _int32(2, 2).T), "last dimension of bitmask must be contiguous"),
        ((torch.zeros(2, 64), _int32(1, 2)), "1 rows for 2 rows of logits"),
        ((torch.zeros(2, 64), _int32(1, 2), _int32(3)), r"rows must be \[2\] int32 or int64"),
        ((torch.zeros(2, 64), _int32(1, 2), torch.zeros(2)), r"rows must be \[2\] int32 or int64"),
        ((torch.zeros(2, 64), _int32(1, 2), _int32(4)[::2]), "rows must be contiguous"),
        ((torch.zeros(2, 64), _int32(2, 2), None, torch.zeros(2)), r"token_mask must be \[2\] int32"),
        ((torch.zeros(2, 64), _int32(2, 2), None, None, _int32(64)), r"d2t must be \[64\] int64"),
        ((torch.zeros(2, 64), _int32(1, 2), torch.tensor([0, 1])), r"rows\[1\] is 1; there are 1 mask rows"),
        ((torch.zeros(2, 64), _int32(1, 2), torch.tensor([-1, 0])), r"rows\[0\] is -1"),
        ((torch.zeros(2, 64, device="meta"), _int32(2, 2)), "must be on one device"),
    ],
)
def test_says_what_is_wrong(arguments: tuple[Tensor | None, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_token_bitmask_(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("words", [1, 4, 4063])
def test_copies_the_listed_rows(words: int, index_dtype: torch.dtype) -> None:
    src = torch.randint(-(2**31), 2**31, (6, words + 1), dtype=torch.int64).to(torch.int32)[:, 1:]
    dst, dst_flags = torch.zeros(6, words, dtype=torch.int32), torch.full((6,), 7, dtype=torch.int32)
    src_flags = torch.tensor([1, 1, 0, 1, 1, 0], dtype=torch.int32)
    copy_mask_rows(dst, src, dst_flags, src_flags, torch.tensor([4, 2, 0, 4], dtype=index_dtype))
    assert dst_flags.tolist() == [1, 7, 0, 7, 1, 7]
    assert torch.equal(dst[[0, 4]], src[[0, 4]])
    assert not dst[[1, 2, 3, 5]].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dst": _int32(3, 2)}, "must have one shape"),
        ({"src": torch.zeros(4, 2)}, "src_masks must be int32"),
        ({"dst": _int32(2, 4).T}, "last dimension of dst_masks"),
        ({"dst_flags": _int32(3)}, r"dst_token_mask must be \[4\] int32"),
        ({"src_flags": torch.zeros(4)}, r"src_token_mask must be \[4\] int32"),
        ({"rows": torch.zeros(2)}, r"rows must be \[2\] int32 or int64"),
        ({"rows": _int32(1, 1)}, r"rows must be \[1\]"),
        ({"rows": torch.tensor([0, 4])}, r"rows\[1\] is 4; there are 4 mask rows"),
    ],
)
def test_copy_says_what_is_wrong(change: dict[str, Tensor], message: str) -> None:
    given = {"dst": _int32(4, 2), "src": _int32(4, 2), "dst_flags": _int32(4), "src_flags": _int32(4)}
    given |= {"rows": torch.tensor([0])} | change
    with pytest.raises(InputError, match=message):
        copy_mask_rows(given["dst"], given["src"], given["dst_flags"], given["src_flags"], given["rows"])


def test_both_are_opaque_under_fake_cuda_tensors() -> None:
    with FakeTensorMode():
        masks, flags = (torch.zeros(s, dtype=torch.int32, device="cuda") for s in ((4, 2), (4,)))
        host_masks, host_flags = (torch.zeros(s, dtype=torch.int32) for s in ((4, 2), (4,)))
        rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        copy_mask_rows(masks, host_masks, flags, host_flags, rows)
        logits = torch.zeros(3, 64, device="cuda")
        apply_token_bitmask_(logits, masks, rows, flags.narrow(0, 0, 3), rows.new_zeros(64))
        with pytest.raises(InputError, match="on one device"):
            apply_token_bitmask_(logits, host_masks, rows)
        with pytest.raises(InputError, match="rows must be"):
            copy_mask_rows(masks, host_masks, flags, host_flags, rows.cpu())
        with pytest.raises(InputError, match="must be in host memory"):
            copy_mask_rows(masks, masks, flags, flags, rows)


def test_mutation_is_declared() -> None:
    schema = torch.ops.weft.apply_token_bitmask_.default._schema
    assert [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write] == ["logits"]
    schema = torch.ops.weft.copy_mask_rows.default._schema
    written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    assert written == ["dst_masks", "dst_token_mask", "dst_temperatures"]


@pytest.mark.parametrize("index_dtype", [None, torch.int32, torch.int64])
def test_a_replay_masks_what_the_tensors_hold_then(index_dtype: torch.dtype | None) -> None:
    logits, bitmask = torch.zeros(2, 64), torch.zeros(3, 2, dtype=torch.int32)
    rows = None if index_dtype is None else torch.tensor([2, 0], dtype=index_dtype)
    captured = Captured(lambda: apply_token_bitmask_(logits, bitmask, rows))
    assert not logits.any(), "a capture must run nothing"
    for number in range(2):
        logits.zero_()
        bitmask[:] = pack(torch.rand(3, 64) < 0.5)
        if rows is not None:
            rows.copy_(torch.tensor([[1, 0], [0, 2]][number]))
        expected = logits.clone()
        apply_token_bitmask_(expected, bitmask, rows)
        captured.replay()
        assert torch.equal(logits, expected) and torch.isinf(logits).any()


def test_a_replay_copies_what_the_tensors_hold_then() -> None:
    src, dst = torch.zeros(4, 2, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int32)
    src_flags, dst_flags = torch.ones(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    src_heat, dst_heat, rows = torch.zeros(4), torch.zeros(4), torch.tensor([0, 3])
    captured = Captured(lambda: copy_mask_rows(dst, src, dst_flags, src_flags, rows, dst_heat, src_heat))
    assert not dst_flags.any(), "a capture must run nothing"
    src.random_(), src_heat.fill_(0.5), rows.copy_(torch.tensor([1, 2]))
    captured.replay()
    assert torch.equal(dst[1:3], src[1:3]) and not dst[[0, 3]].any()
    assert dst_flags.tolist() == [0, 1, 1, 0] and dst_heat.tolist() == [0, 0.5, 0.5, 0]


def test_a_replay_with_a_row_that_is_not_there_fails() -> None:
    logits, masks, rows = torch.zeros(1, 32), torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0])
    captured = Captured(lambda: apply_token_bitmask_(logits, masks, rows))
    rows.fill_(1)
    with pytest.raises((IndexError, RuntimeError), match="not among the masks"):
        captured.replay()
