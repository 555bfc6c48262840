"""Chaining of weft's Triton kernels by programmatic dependent launch, and counters for programs that join results.

With programmatic dependent launch, a kernel starts while the previous kernel still runs: as soon as all programs of
that kernel have called `let_next_start`, or ended. Every program, even one without work, calls `wait_for_earlier`
before it touches memory that another kernel writes. Then the previous kernel is complete, and so are all kernels before
it, since it waited too. The calls have no effect if the device has no such launch, or if the previous kernel is not
weft's.

Before it waits, a program may read only memory that no unfinished kernel writes. It may read weights, which are older
than the stream's work. It may also read the inputs and outputs of `read_slots_`, if the caller promises it
(`Rows.settled`): no later kernel starts before `read_slots_` ends. It may read a number of live rows, which must not be
written by a kernel of the chain.
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
"""Whether Triton supports programmatic dependent launch."""

MAX_COUNTERS = 1 << 16

_counters: dict[tuple[torch.device, int], Tensor] = {}  # by device and stream


@triton.jit
def let_next_start(CHAINED: tl.constexpr):
    """Let the next kernel start once all programs of this kernel have called this."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_earlier(CHAINED: tl.constexpr):
    """Wait until all earlier kernels are complete and their writes visible."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def waited(CHAINED: tl.constexpr):
    """Wait like `wait_for_earlier`, and return 0. Code that depends on the value runs after the wait."""
    zero = 0
    if CHAINED:
        zero = tl.inline_asm_elementwise(
            "griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )
    return zero


@triton.jit
def begin(CHAINED: tl.constexpr):
    """`let_next_start`, then `wait_for_earlier`: for kernels that read nothing before the wait."""
    let_next_start(CHAINED)
    wait_for_earlier(CHAINED)


@triton.jit
def is_padding(row, Live):
    """Whether `row` comes after the live rows, whose number is at `Live`. With None it never does. Call it after
    `wait_for_earlier`."""
    padding = False
    if Live is not None:
        padding = row >= tl.load(Live)
    return padding


@cache
def _can_chain(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


def chain_options(tensor: Tensor) -> dict[str, Any]:
    """Launch options that chain a kernel on the device of `tensor` to the previous one."""
    chained = CHAINS and chosen().chained and tensor.is_cuda and _can_chain(tensor.device)
    return {"CHAINED": True, "launch_pdl": True} if chained else {"CHAINED": False}


def counters(like: Tensor, count: int) -> Tensor:
    """At least `count` int32 counters, all 0, on the device of `like`. The kernel must set them back to 0. The kernels
    of a stream share them, since they run one after another."""
    if not like.is_cuda or count > MAX_COUNTERS:
        return torch.zeros(count, dtype=torch.int32, device=like.device)
    key = (like.device, torch.cuda.current_stream(like.device).cuda_stream)
    shared = _counters.get(key)
    if shared is None:
        shared = torch.zeros(MAX_COUNTERS, dtype=torch.int32, device=like.device)
        # Memory allocated during a capture belongs to the graph, whose replays write the zeros. So don't share it.
        if not torch.cuda.is_current_stream_capturing():
            _counters[key] = shared
    return shared
