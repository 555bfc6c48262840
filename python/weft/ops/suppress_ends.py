"""min_tokens: what would end a request is blocked until it has as many tokens as it wants."""

from __future__ import annotations

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import (
    check_cuda,
    check_logits,
    check_vector,
    device_of,
    native_logits,
    register,
    require,
    require_cuda_kernels,
    stream_of,
)


def suppress_ends_(logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor) -> None:
    """Set the logits of end tokens to -inf before the position from which they are wanted, in place.

    logits: [n, vocab] float32, float16 or bfloat16, the grammar's mask applied; the last dimension contiguous, rows
        any distance apart.
    slot: [n] int64. A row whose slot is out of bounds is left alone.
    ends: [R, E] int32, contiguous: the tokens that would end a slot's request; -1 is none.
    until: [R] int64; position: [n] int64. Row i is changed where position[i] < until[slot[i]].
    A row whose other logits are all -inf or NaN stays as it is: the grammar beats min_tokens. Raises InputError for
    tensors that are not as above, and InterfaceError for CUDA tensors in a build without CUDA.
    """
    _SUPPRESS(logits, slot, ends, until, position)


def suppress_ends_reference_(
    logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor
) -> None:
    """The same in plain torch."""
    columns_V = torch.arange(logits.shape[1], device=logits.device)
    is_end_NV = (ends[slot].long()[:, :, None] == columns_V).any(1)
    others_N1 = ((logits > float("-inf")) & ~is_end_NV).any(1, keepdim=True)
    early_N1 = (position < until[slot])[:, None]
    logits.masked_fill_(is_end_NV & others_N1 & early_N1, float("-inf"))


def _check_suppress(logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor) -> None:
    check_logits(logits, in_place=True)
    fits = ends.dtype is torch.int32 and ends.dim() == 2 and ends.is_contiguous()
    require(
        fits and ends.device == logits.device,
        f"ends must be [slots, any] int32, contiguous, on {logits.device}; "
        f"got {list(ends.shape)} {ends.dtype} on {ends.device}",
    )
    check_vector("slot", slot, (torch.int64,), logits.shape[0], logits)
    check_vector("position", position, (torch.int64,), logits.shape[0], logits)
    check_vector("until", until, (torch.int64,), ends.shape[0], logits)


def _arguments(
    logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor
) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:
    _check_suppress(logits, slot, ends, until, position)
    return (
        *native_logits(logits),
        ends.data_ptr(),
        until.data_ptr(),
        ends.shape[0],
        ends.shape[1],
        slot.data_ptr(),
        position.data_ptr(),
    )


def _suppress_cpu(logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor) -> None:
    _core.suppress_ends_cpu(*_arguments(logits, slot, ends, until, position), torch.get_num_threads())


def _suppress_cuda(logits: Tensor, slot: Tensor, ends: Tensor, until: Tensor, position: Tensor) -> None:
    require_cuda_kernels()
    arguments = _arguments(logits, slot, ends, until, position)
    with device_of(logits):
        check_cuda(_core.suppress_ends_cuda(*arguments, stream_of(logits)))


_SUPPRESS = register(
    "suppress_ends_(Tensor(a!) logits, Tensor slot, Tensor ends, Tensor until, Tensor position) -> ()",
    cpu=_suppress_cpu,
    cuda=_suppress_cuda,
    fake=_check_suppress,
)
