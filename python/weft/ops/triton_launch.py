"""What weft's Triton kernels have in common: how they follow each other, and counters for those whose programs meet.

With programmatic dependent launch the programs of a kernel start while the kernel before it still runs: as soon as all
of that one's programs have called `let_next_start`, or ended. All programs call `wait_for_earlier`, also those with
nothing to do, before they touch what another kernel writes. The kernel before is complete then. Since that one waited
too, so is everything before it, even what still ran when this kernel started. Where the device can't do it, or the
kernel before is another's, all this changes nothing.

Before it waits, a program may read only what no unfinished kernel writes: weights, which are older than a stream's
work; and, where the caller vouches for it, what `read_slots_` wrote or found, since that kernel lets none start early.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.variants import chosen

CHAINS = hasattr(tl.extra.cuda, "gdc_wait")
"""Whether kernels follow each other by programmatic dependent launch, where the device has it."""

MOST_COUNTERS = 1 << 16

_counters: dict[tuple[torch.device, int], Tensor] = {}  # by device and stream


@triton.jit
def let_next_start(CHAINED: tl.constexpr):
    """Let the next kernel's programs start once all of this one's are here."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_earlier(CHAINED: tl.constexpr):
    """Wait until all earlier kernels are done and visible."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def waited(CHAINED: tl.constexpr):
    """`wait_for_earlier`; 0, so that what depends on it comes after."""
    zero = 0
    if CHAINED:
        zero = tl.inline_asm_elementwise(
            "griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    return zero


@triton.jit
def begin(CHAINED: tl.constexpr):
    """`let_next_start`, then `wait_for_earlier`: for kernels with nothing to read before."""
    let_next_start(CHAINED)
    wait_for_earlier(CHAINED)


@cache
def _can_chain(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


def chain_options(tensor: Tensor) -> dict[str, Any]:
    """Arguments by which a kernel on the device of `tensor` follows the one before it."""
    chained = CHAINS and chosen().chained and tensor.is_cuda and _can_chain(tensor.device)
    return {"CHAINED": True, "launch_pdl": True} if chained else {"CHAINED": False}


def counters(like: Tensor, count: int) -> Tensor:
    """`count` int32 or more on the device of `like`, zeros; the kernel leaves zeros. The kernels of a stream, which run
    one after the other, share them: they are as old as its first kernel, so that a graph does not write them."""
    if not like.is_cuda or count > MOST_COUNTERS:
        return torch.zeros(count, dtype=torch.int32, device=like.device)
    key = (like.device, torch.cuda.current_stream(like.device).cuda_stream)
    found = _counters.get(key)
    if found is None:
        found = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=like.device)
        if not torch.cuda.is_current_stream_capturing():  # memory of a capture is the graph's alone
            _counters[key] = found
    return found
