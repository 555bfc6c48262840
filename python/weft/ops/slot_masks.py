"""Token masks by slot: copies them to the device, and blocks the tokens that they forbid.

Each of R slots has P mask rows, one for each position: row slot * P + j of `masks` has the tokens that may follow the
slot's committed text and j drafts. Bits are as in `weft.ops.token_mask`. Both operations work in a function given to
`launch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import (
    address,
    check_cuda,
    check_logits,
    check_vector,
    device_of,
    launch_cuda,
    multiprocessors,
    native_logits,
    register,
    require,
    require_cuda_kernels,
    run_kernel,
    stream_of,
)


@dataclass(frozen=True)
class SlotMasks:
    """Mask rows of R slots, `num_positions` (P) for each slot. All tensors are contiguous. They are on a device, or in
    host memory, which is pinned for CUDA.

    masks: [R * P, W] int32. flags: [R * P] int32; 0 means that the row's logits are not masked. temperatures: [R * P]
        float32.
    """

    masks: Tensor
    flags: Tensor
    temperatures: Tensor
    num_positions: int

    def __post_init__(self) -> None:
        rows = self.masks.shape[0]
        for tensor, dtype, dims in (
            (self.masks, torch.int32, 2),
            (self.flags, torch.int32, 1),
            (self.temperatures, torch.float32, 1),
        ):
            fits = tensor.dtype is dtype and tensor.dim() == dims and tensor.shape[0] == rows
            require(
                fits and tensor.is_contiguous(), f"got {tensor.dtype} {list(tensor.shape)} for {rows} rows"
            )


def apply_slot_masks_(
    logits: Tensor, masks: SlotMasks, slots: Tensor, first: int = 0, d2t: Tensor | None = None
) -> None:
    """Set the logits of blocked tokens to -inf, in place.

    logits: [B * T, V] float32, float16 or bfloat16, as in `apply_token_bitmask_`; row b * T + t uses the mask of
        position first + t of slot slots[b]. slots: [B] int64. d2t: [V] int64; column c stands for token c + d2t[c].
    """
    _APPLY(logits, masks.masks, masks.flags, slots, masks.num_positions, first, d2t)


def copy_slot_masks(to: SlotMasks, source: SlotMasks, slots: Tensor, first: int, stop: int) -> None:
    """Copy the rows of positions first..stop-1 of `slots` [B] int64 with their flags and temperatures. Masks of rows
    with flag 0 are not copied. `source` is in host memory, which the kernel reads directly on CUDA."""
    _COPY(
        slots, to.masks, to.flags, to.temperatures, source.masks, source.flags, source.temperatures, to.num_positions,
        first, stop,
    )  # fmt: skip


def _apply_call(
    logits: Tensor,
    masks: Tensor,
    flags: Tensor,
    slots: Tensor,
    num_positions: int,
    first: int,
    *rest: Tensor | None,
) -> _core.ApplyCall:
    check_logits(logits, in_place=True)
    batch = slots.shape[0]
    check_vector("slots", slots, (torch.int64,), batch, logits)
    width = logits.shape[0] // max(batch, 1)
    fits = width * batch == logits.shape[0] and first + width <= num_positions
    require(fits, f"{logits.shape[0]} rows of logits from position {first} on don't fit {batch} slots")
    d2t = rest[0] if rest else None
    if d2t is not None:
        check_vector("d2t", d2t, (torch.int64,), logits.shape[1], logits)
    return _core.apply_slots_call(
        *native_logits(logits), masks.data_ptr(), masks.shape[0], masks.shape[1], masks.stride(0),
        flags.data_ptr(), slots.data_ptr(), width, num_positions, first, address(d2t),
    )  # fmt: skip


def _apply_cpu(*args: Any) -> None:
    run_kernel("mask", _core.apply_slot_masks_cpu(_apply_call(*args), torch.get_num_threads()))


def _apply_cuda(logits: Tensor, *args: Any) -> None:
    require_cuda_kernels()
    with device_of(logits):
        sms = multiprocessors(logits.get_device())
        check_cuda(_core.apply_slot_masks_cuda(_apply_call(logits, *args), sms, stream_of(logits)))


def _copy_call(
    slots: Tensor,
    to: Tensor,
    to_flags: Tensor,
    to_temperatures: Tensor,
    source: Tensor,
    flags: Tensor,
    temperatures: Tensor,
    num_positions: int,
    first: int,
    stop: int,
) -> _core.MaskCopyCall:
    require(to.shape == source.shape, f"masks must have one shape; got {to.shape} and {source.shape}")
    require(0 <= first <= stop <= num_positions, f"positions {first}..{stop} are not among {num_positions}")
    check_vector("slots", slots, (torch.int64,), slots.shape[0], to)
    return _core.copy_slots_call(
        to.data_ptr(), source.data_ptr(), to.shape[0], to.shape[1], to.stride(0), source.stride(0), to_flags.data_ptr(),
        flags.data_ptr(), to_temperatures.data_ptr(), temperatures.data_ptr(), slots.data_ptr(), slots.shape[0],
        stop - first, num_positions, first,
    )  # fmt: skip


def _copy_cpu(*args: Any) -> None:
    run_kernel("copy_masks", _core.copy_slot_masks_cpu(_copy_call(*args)))


def _copy_cuda(slots: Tensor, *args: Any) -> None:
    launch_cuda(_core.copy_slot_masks_cuda, _copy_call, slots, *args)


_APPLY = register(
    "apply_slot_masks_(Tensor(a!) logits, Tensor masks, Tensor flags, Tensor slots, int num_positions, int first,"
    " Tensor? d2t=None) -> ()",
    cpu=_apply_cpu,
    cuda=_apply_cuda,
)
_COPY = register(
    "copy_slot_masks(Tensor slots, Tensor(a!) to, Tensor(b!) to_flags, Tensor(c!) to_temperatures, Tensor source,"
    " Tensor flags, Tensor temperatures, int num_positions, int first, int stop) -> ()",
    cpu=_copy_cpu,
    cuda=_copy_cuda,
)
