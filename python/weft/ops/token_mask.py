"""Token bitmasks: blocks the logits of tokens that a grammar forbids, and copies masks to the device.

Token t is bit t % 32 of the int32 word t // 32 in a mask row; 1 allows the token. Both operations work in a function
given to `launch`, and allocate no memory. On the CPU they always run at once, so a capture does not record them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft import _core
from weft.errors import InputError
from weft.ops.library import (
    check_cuda,
    check_logits,
    check_vector,
    device_of,
    multiprocessors,
    native_logits,
    register,
    require,
    require_cuda_kernels,
    run_kernel,
    stream_of,
)
from weft.runtime.recorder import current_recorder

_INTEGERS = (torch.int32, torch.int64)

# Arguments of the native functions, without the final number of threads or stream.
_ApplyArguments = tuple[int, int, int, int, int, int, int, int, int, int, bool, int, int]
_CopyArguments = tuple[int, int, int, int, int, int, int, int, int, bool, int, int, int]


def allocate_token_bitmask(batch_size: int, vocab_size: int, *, pinned: bool = False) -> Tensor:
    """Mask rows in host memory that allow every token: [batch_size, ceil(vocab_size / 32)] int32.

    `Matcher.fill` writes a row. `pinned`: for copies to a GPU. Raises InputError for sizes below 1.
    """
    require(
        batch_size >= 1 and vocab_size >= 1, f"sizes must be at least 1, not {batch_size} and {vocab_size}"
    )
    return torch.full((batch_size, -(-vocab_size // 32)), -1, dtype=torch.int32, pin_memory=pinned)


def apply_token_bitmask_(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> None:
    """Set the logits of blocked tokens to -inf, in place.

    logits: [n, vocab] float32, float16 or bfloat16, with a contiguous last dimension and any row stride.
    bitmask: [m, words] int32, with the same strides; `words` is ceil(vocabulary / 32). Bits beyond the vocabulary are
        ignored. A token beyond the words is blocked.
    rows: [n] int32 or int64, the mask row of each logits row. By default logits row i uses mask row i, and m must be at
        least n. A number out of [0, m) raises InputError on the CPU, or fails the replay if the operation is captured.
        On CUDA the host can't see it, so the kernel blocks the whole row, and sampling returns -1.
    token_mask: [n] int32; logits row i is not masked if token_mask[i] is 0.
    d2t: [vocab] int64; column i stands for token i + d2t[i]. A token outside of the mask is blocked.
    All tensors are on one device. Raises InputError for other shapes, dtypes or devices, and InterfaceError for CUDA
    tensors in a build without CUDA.
    """
    _APPLY(logits, bitmask, rows, token_mask, d2t)


def copy_mask_rows(
    dst_masks: Tensor,
    src_masks: Tensor,
    dst_token_mask: Tensor,
    src_token_mask: Tensor,
    rows: Tensor,
    dst_temperatures: Tensor | None = None,
    src_temperatures: Tensor | None = None,
) -> None:
    """Copy the mask rows listed in `rows`, and their flags, from host memory to the device.

    dst_masks, src_masks: [m, words] int32, the last dimension contiguous.
    dst_token_mask, src_token_mask: [m] int32, the flags. dst_temperatures, src_temperatures: [m] float32, copied like
        the flags.
    rows: [n] int32 or int64 on the device of dst. If a row's source flag is 0, its mask is not copied. A number out of
        [0, m) raises InputError on the CPU, or fails the replay if the operation is captured. On CUDA it is skipped.
    On CUDA the sources are in pinned host memory, which the kernel reads directly. Don't write them again before the
    stream has completed this operation.
    """
    _COPY(dst_masks, src_masks, dst_token_mask, src_token_mask, rows, dst_temperatures, src_temperatures)


def _check_apply(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> None:
    check_logits(logits, in_place=True)
    if not (bitmask.dtype is torch.int32 and bitmask.dim() == 2 and bitmask.stride(1) == 1):
        _refuse_masks("bitmask", bitmask)
    if bitmask.device != logits.device:
        raise InputError(
            f"bitmask is on {bitmask.device}, logits on {logits.device}; they must be on one device"
        )
    n = logits.shape[0]
    if rows is not None:
        check_vector("rows", rows, _INTEGERS, n, logits)
    elif bitmask.shape[0] < n:
        raise InputError(
            f"bitmask has {bitmask.shape[0]} rows for {n} rows of logits; give their numbers in rows"
        )
    if token_mask is not None:
        check_vector("token_mask", token_mask, (torch.int32,), n, logits)
    if d2t is not None:
        check_vector("d2t", d2t, (torch.int64,), logits.shape[1], logits)


def _refuse_masks(name: str, masks: Tensor) -> None:
    require(masks.dtype == torch.int32, f"{name} must be int32 words, not {masks.dtype}")
    require(masks.dim() == 2, f"{name} must be [m, words], not {list(masks.shape)}")
    require(masks.stride(1) == 1 or masks.shape[1] <= 1, f"the last dimension of {name} must be contiguous")


def _apply_arguments(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> _ApplyArguments:
    _check_apply(logits, bitmask, rows, token_mask, d2t)
    mask_rows, words = bitmask.shape
    return (
        *native_logits(logits),
        bitmask.data_ptr(),
        mask_rows,
        words,
        bitmask.stride(0),
        0 if rows is None else rows.data_ptr(),
        rows is not None and rows.dtype is torch.int64,
        0 if token_mask is None else token_mask.data_ptr(),
        0 if d2t is None else d2t.data_ptr(),
    )


def _apply_cpu(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> None:
    arguments, threads = _apply_arguments(logits, bitmask, rows, token_mask, d2t), torch.get_num_threads()
    if current_recorder() is not None:
        run_kernel("mask", _core.apply_slot_masks_cpu(_core.apply_rows_call(*arguments), threads))
        return
    # A `Kernel` would not return the place of a row number that is out of range.
    bad = _core.apply_token_bitmask_cpu(*arguments, threads)
    if bad >= 0:
        _refuse_row(rows, bad, bitmask)


def _apply_cuda(
    logits: Tensor,
    bitmask: Tensor,
    rows: Tensor | None = None,
    token_mask: Tensor | None = None,
    d2t: Tensor | None = None,
) -> None:
    require_cuda_kernels()
    arguments = _apply_arguments(logits, bitmask, rows, token_mask, d2t)
    with device_of(logits):
        sms = multiprocessors(logits.get_device())
        check_cuda(_core.apply_token_bitmask_cuda(*arguments, sms, stream_of(logits)))


def _refuse_row(rows: Tensor | None, index: int, masks: Tensor) -> None:
    assert rows is not None
    raise InputError(
        f"rows[{index}] is {int(rows[index])}; there are {masks.shape[0]} mask rows, counted from 0"
    )


def _check_copy(
    dst: Tensor,
    src: Tensor,
    dst_flags: Tensor,
    src_flags: Tensor,
    rows: Tensor,
    dst_temperatures: Tensor | None = None,
    src_temperatures: Tensor | None = None,
) -> None:
    if not (dst.dtype is torch.int32 and dst.dim() == 2 and dst.stride(1) == 1):
        _refuse_masks("dst_masks", dst)
    if not (src.dtype is torch.int32 and src.dim() == 2 and src.stride(1) == 1):
        _refuse_masks("src_masks", src)
    if dst.shape != src.shape:
        raise InputError(
            f"dst_masks and src_masks must have one shape; got {list(dst.shape)} and {list(src.shape)}"
        )
    if not src.is_cpu:
        raise InputError(
            f"src_masks must be in host memory (pinned, if dst_masks is on CUDA), not on {src.device}"
        )
    check_vector("dst_token_mask", dst_flags, (torch.int32,), dst.shape[0], dst)
    check_vector("src_token_mask", src_flags, (torch.int32,), dst.shape[0], src)
    check_vector("rows", rows, _INTEGERS, rows.numel(), dst)
    if dst_temperatures is not None and src_temperatures is not None:
        check_vector("dst_temperatures", dst_temperatures, (torch.float32,), dst.shape[0], dst)
        check_vector("src_temperatures", src_temperatures, (torch.float32,), src.shape[0], src)


def _copy_arguments(
    dst: Tensor,
    src: Tensor,
    dst_flags: Tensor,
    src_flags: Tensor,
    rows: Tensor,
    dst_temperatures: Tensor | None = None,
    src_temperatures: Tensor | None = None,
) -> _CopyArguments:
    _check_copy(dst, src, dst_flags, src_flags, rows, dst_temperatures, src_temperatures)
    mask_rows, words = dst.shape
    return (
        dst.data_ptr(),
        src.data_ptr(),
        mask_rows,
        words,
        dst.stride(0),
        src.stride(0),
        dst_flags.data_ptr(),
        src_flags.data_ptr(),
        rows.data_ptr(),
        rows.dtype is torch.int64,
        rows.shape[0],
        0 if dst_temperatures is None else dst_temperatures.data_ptr(),
        0 if src_temperatures is None else src_temperatures.data_ptr(),
    )


def _copy_cpu(
    dst: Tensor, src: Tensor, dst_flags: Tensor, src_flags: Tensor, rows: Tensor, *temperatures: Tensor | None
) -> None:
    arguments = _copy_arguments(dst, src, dst_flags, src_flags, rows, *temperatures)
    if current_recorder() is not None:
        run_kernel("copy_masks", _core.copy_slot_masks_cpu(_core.copy_rows_call(*arguments)))
        return
    bad = _core.copy_mask_rows_cpu(*arguments)
    if bad >= 0:
        _refuse_row(rows, bad, dst)


def _copy_cuda(
    dst: Tensor, src: Tensor, dst_flags: Tensor, src_flags: Tensor, rows: Tensor, *temperatures: Tensor | None
) -> None:
    require_cuda_kernels()
    arguments = _copy_arguments(dst, src, dst_flags, src_flags, rows, *temperatures)
    if not (src.is_pinned() and src_flags.is_pinned()):
        raise InputError(
            "src_masks and src_token_mask must be pinned for a copy to CUDA; allocate them with pin_memory"
        )
    with device_of(dst):
        check_cuda(_core.copy_mask_rows_cuda(*arguments, stream_of(dst)))


_APPLY = register(
    "apply_token_bitmask_(Tensor(a!) logits, Tensor bitmask, Tensor? rows=None, Tensor? token_mask=None,"
    " Tensor? d2t=None) -> ()",
    cpu=_apply_cpu,
    cuda=_apply_cuda,
    fake=_check_apply,
)
_COPY = register(
    "copy_mask_rows(Tensor(a!) dst_masks, Tensor src_masks, Tensor(b!) dst_token_mask, Tensor src_token_mask,"
    " Tensor rows, Tensor(c!)? dst_temperatures=None, Tensor? src_temperatures=None) -> ()",
    cpu=_copy_cpu,
    cuda=_copy_cuda,
    fake=_check_copy,
)
