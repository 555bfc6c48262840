"""The mask operations on CUDA, against the same on the CPU, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.errors import InputError
from weft.ops.token_mask import apply_token_bitmask_, copy_mask_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random_masks(rows: int, words: int, seed: int = 0) -> Tensor:
    """Mask words, a third of them all set, a third all clear."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(-(2**31), 2**31, (rows, words), generator=generator).to(torch.int32)
    kind = torch.randint(0, 3, (rows, words), generator=generator)
    return masks.where(kind == 0, -(kind == 1).to(torch.int32))


def assert_as_on_the_cpu(logits: Tensor, *arguments: Tensor | None) -> None:
    """`logits` may be a view; its whole storage must come out as on the CPU."""
    on_cuda = torch.empty_strided(logits.size(), logits.stride(), dtype=logits.dtype, device="cuda")
    on_cuda.copy_(logits)
    apply_token_bitmask_(on_cuda, *[None if a is None else a.cuda() for a in arguments])  # type: ignore[arg-type]
    apply_token_bitmask_(logits, *arguments)  # type: ignore[arg-type]
    assert torch.equal(on_cuda.cpu(), logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 2048, 128000, 128001])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_blocks_as_on_the_cpu(rows: int, vocab: int, dtype: torch.dtype) -> None:
    assert_as_on_the_cpu(torch.randn(rows, vocab).to(dtype), random_masks(rows, -(-vocab // 32)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", range(8))
def test_any_alignment_and_nothing_beside(offset: int, dtype: torch.dtype) -> None:
    rows, vocab, stride = 5, 1003, 1031
    host = torch.randn(offset + rows * stride).to(dtype)
    device = host.cuda()
    masks = random_masks(rows, 40)[:, 5:37]
    for storage in (host, device):
        view = storage[offset:].as_strided((rows, vocab), (stride, 1))
        apply_token_bitmask_(view, masks.to(storage.device))
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_and_token_mask(dtype: torch.dtype, index_dtype: torch.dtype) -> None:
    rows = torch.randint(0, 9, (70,)).to(index_dtype)
    flags = torch.randint(0, 2, (70,)).to(torch.int32)
    assert_as_on_the_cpu(torch.randn(70, 5000).to(dtype), random_masks(9, 157), rows, flags)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [4, 128, 128000, 9001])
def test_d2t(vocab: int, dtype: torch.dtype) -> None:
    draft = vocab // 4
    d2t = torch.randperm(vocab)[:draft] - torch.arange(draft)
    d2t[0] = -1
    assert_as_on_the_cpu(torch.randn(3, draft).to(dtype), random_masks(3, -(-vocab // 32)), None, None, d2t)


@pytest.mark.parametrize("words", [0, 1, 3])
def test_columns_beyond_the_mask_are_blocked(words: int) -> None:
    assert_as_on_the_cpu(torch.randn(3, 140), random_masks(3, words))


def test_a_row_number_out_of_bounds_blocks_the_row() -> None:
    logits = torch.zeros(3, 1000, device="cuda")
    masks = torch.full((2, 32), -1, dtype=torch.int32, device="cuda")
    apply_token_bitmask_(logits, masks, torch.tensor([2, 1, -1], device="cuda"))
    assert logits.isinf().all(1).tolist() == [True, False, True]


def test_offsets_have_64_bits() -> None:
    rows, vocab = 17, 2**27
    if torch.cuda.mem_get_info()[0] < 6 * 2**30:
        pytest.skip("needs 6 GiB of GPU memory")
    logits = torch.zeros(rows, vocab, dtype=torch.float16, device="cuda")
    masks = torch.zeros(1, vocab // 32, dtype=torch.int32, device="cuda")
    masks[0, -1] = -(2**31)
    apply_token_bitmask_(logits[-1:], masks)
    apply_token_bitmask_(logits, masks, torch.zeros(rows, dtype=torch.int32, device="cuda"))
    assert (logits[:, -1] == 0).all()
    assert logits[-1, :-1].isinf().all()


@pytest.mark.parametrize("words", [1, 4, 64, 4063, 4064])
@pytest.mark.parametrize("start", [0, 1])
def test_copies_rows_from_pinned_memory(words: int, start: int) -> None:
    src = random_masks(6, words + 4).pin_memory()[:, start : start + words]
    src_flags = torch.tensor([1, 1, 0, 1, 1, 0], dtype=torch.int32).pin_memory()
    dst = torch.zeros(6, words, dtype=torch.int32, device="cuda")
    flags = torch.full((6,), 7, dtype=torch.int32, device="cuda")
    copy_mask_rows(dst, src, flags, src_flags, torch.tensor([4, 2, 0, 4, 6, -1], device="cuda"))
    assert flags.tolist() == [1, 7, 0, 7, 1, 7]
    assert torch.equal(dst[[0, 4]].cpu(), src[[0, 4]])
    assert not dst[[1, 2, 3, 5]].any()


def test_a_copy_needs_pinned_memory() -> None:
    masks, flags = torch.zeros(2, 4, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    with pytest.raises(InputError, match="must be pinned"):
        copy_mask_rows(
            masks.cuda(), masks, flags.cuda(), flags, torch.zeros(1, dtype=torch.int64, device="cuda")
        )


def test_a_captured_copy_reads_what_the_host_wrote_last() -> None:
    src, src_flags = (
        torch.zeros(3, 4064, dtype=torch.int32).pin_memory(),
        torch.ones(3, dtype=torch.int32).pin_memory(),
    )
    dst, flags = src.cuda(), torch.zeros(3, dtype=torch.int32, device="cuda")
    rows = torch.tensor([2, 0], device="cuda")
    logits = torch.zeros(2, 130048, device="cuda")

    def step() -> None:
        logits.zero_()
        copy_mask_rows(dst, src, flags, src_flags, rows)
        apply_token_bitmask_(logits, dst, rows, flags[rows])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    for word in (1, 6, -1, 0):
        src.fill_(word)
        src_flags[0] = int(word != 6)
        graph.replay()
        torch.cuda.synchronize()
        expected = torch.zeros(2, 130048)
        apply_token_bitmask_(expected, src, torch.tensor([2, 0]), src_flags[[2, 0]])
        assert torch.equal(logits.cpu(), expected)
