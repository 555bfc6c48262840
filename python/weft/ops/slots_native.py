"""How the operations of `slots.py` reach the extension: as `torch.ops.weft.*`, on the CPU and on CUDA."""

from __future__ import annotations

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

_PARAMS = (
    "Tensor floats, Tensor longs, Tensor ints, Tensor counts, Tensor prompt, Tensor bias, Tensor bad_words,"
    " Tensor history, Tensor ends"
)
_NUM_PARAMS = 9
_MOST_COLUMNS = 2**23  # so that the sum of a row's probabilities fits 64 bits


def _tables(tensors: tuple[Tensor, ...]) -> _core.SlotTables:
    _, _, _, counts, _, _, bad_words, history, ends = tensors
    slots, vocab = counts.shape
    return _core.SlotTables(
        slots, vocab, bad_words.shape[1], history.shape[1], ends.shape[1], *[t.data_ptr() for t in tensors]
    )


def _given(rest: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """What follows the parameters, of which torch's dispatcher leaves out what is None at the end."""
    return (*rest[_NUM_PARAMS:], *[None] * count)[:count]


def _width(temperatures: Tensor | None, slots: int) -> int:
    return 0 if temperatures is None else temperatures.numel() // slots


def _check_rows(logits: Tensor, slot: Tensor, base: Tensor) -> None:
    check_logits(logits, in_place=True)
    require(
        logits.shape[1] <= _MOST_COLUMNS, f"logits have {logits.shape[1]} columns; at most {_MOST_COLUMNS}"
    )
    check_vector("slot", slot, (torch.int64,), slot.shape[0], logits)
    check_vector("base", base, (torch.int64,), slot.shape[0], logits)


def _check_sample(logits: Tensor, slot: Tensor, base: Tensor, inputs: Tensor, *rest: Any) -> Tensor:
    _check_rows(logits, slot, base)
    fits = inputs.dim() == 2 and inputs.dtype is torch.int64 and inputs.is_contiguous()
    require(
        fits and inputs.numel() == logits.shape[0] and inputs.shape[0] == slot.shape[0],
        f"inputs must be [{slot.shape[0]}, T] int64, contiguous, one for each row of the logits; "
        f"got {list(inputs.shape)} {inputs.dtype} for {logits.shape[0]} rows",
    )
    return torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)


def _target_call(
    logits: Tensor, slot: Tensor, base: Tensor, inputs: Tensor, *rest: Any
) -> tuple[_core.SlotCall, Tensor]:
    out = _check_sample(logits, slot, base, inputs, *rest)
    tables, (temperatures,) = _tables(rest[:_NUM_PARAMS]), _given(rest, 1)
    call = _core.target_call(
        *native_logits(logits), inputs.shape[1], tables, slot.data_ptr(), base.data_ptr(), inputs.data_ptr(),
        address(temperatures), _width(temperatures, rest[3].shape[0]), out.data_ptr(),
    )  # fmt: skip
    return call, out


def _check_pick(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> None:
    _check_rows(logits, slot, base)
    check_vector("count", count, (torch.int64,), slot.shape[0], logits)
    require(1 <= number <= drafts.shape[0], f"draft number {number} is not one of {drafts.shape[0]}")
    _, proposed, d2t, out, drafts_host = _given(rest, 5)
    if d2t is not None:
        check_vector("d2t", d2t, (torch.int64,), logits.shape[1], logits)
    check_vector("out", out, (torch.int64,), logits.shape[0], logits)
    for name, other in (("proposed", proposed), ("drafts_host", drafts_host)):
        _check_like(name, other, "drafts", drafts)


def _check_like(name: str, tensor: Tensor | None, model: str, like: Tensor) -> None:
    """A tensor of the device's, or of the host's, that has the shape of another."""
    fits = tensor is None or (
        tensor.shape == like.shape and tensor.dtype is like.dtype and tensor.is_contiguous()
    )
    require(fits, f"{name} must be as {model}, {list(like.shape)} {like.dtype}, contiguous")


def _reached(name: str, tensor: Tensor | None, like: Tensor) -> int:
    """The address of a tensor on the device of another, or in memory of the host's that the device reaches."""
    if tensor is None:
        return 0
    is_reached = tensor.device == like.device or tensor.is_pinned()
    require(is_reached, f"{name} is in the host's memory, which kernels reach only where it is pinned")
    return tensor.data_ptr()


def _draft_call(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> _core.SlotCall:
    _check_pick(logits, slot, base, count, drafts, number, *rest)
    tables, (temperatures, proposed, d2t, out, drafts_host) = _tables(rest[:_NUM_PARAMS]), _given(rest, 5)
    return _core.draft_call(
        *native_logits(logits), number, tables, slot.data_ptr(), base.data_ptr(), count.data_ptr(),
        drafts.data_ptr(), address(temperatures), _width(temperatures, rest[3].shape[0]),
        _reached("proposed", proposed, drafts), address(d2t), out.data_ptr(),
        _reached("drafts_host", drafts_host, drafts),
    )  # fmt: skip


def _sample_cpu(*args: Any) -> Tensor:
    call, out = _target_call(*args)
    run_kernel("sample", _core.sample_slots_cpu(call, torch.get_num_threads()))
    return out


def _pick_cpu(*args: Any) -> None:
    run_kernel("pick", _core.sample_slots_cpu(_draft_call(*args), torch.get_num_threads()))


def _sample_cuda(logits: Tensor, *args: Any) -> Tensor:
    call, out = _target_call(logits, *args)
    _launch_cuda(call, logits)
    return out


def _pick_cuda(logits: Tensor, *args: Any) -> None:
    _launch_cuda(_draft_call(logits, *args), logits)


def _launch_cuda(call: _core.SlotCall, logits: Tensor) -> None:
    require_cuda_kernels()
    sms = multiprocessors(logits.get_device())
    with device_of(logits):
        check_cuda(_core.sample_slots_cuda(call, sms, stream_of(logits)))


def _advance_call(
    sampled: Tensor, slot: Tensor, base: Tensor, inputs: Tensor, *rest: Any
) -> _core.AdvanceCall:
    rows, width = inputs.shape
    check_vector("slot", slot, (torch.int64,), rows, sampled)
    check_vector("base", base, (torch.int64,), rows, sampled)
    fits = sampled.shape == inputs.shape and sampled.is_contiguous() and inputs.is_contiguous()
    require(
        fits, f"sampled and inputs must be contiguous, of one shape; got {sampled.shape} and {inputs.shape}"
    )
    (
        count, tokens, verified, last_token, length, proposed, drafts, host, floats, ints, counts, history,
        is_counted,
    ) = rest  # fmt: skip
    _check_like("verified_host", host, "verified", verified)
    return _core.advance_call(
        rows, width, verified.shape[0], slot.data_ptr(), base.data_ptr(), inputs.data_ptr(), sampled.data_ptr(),
        is_counted, count.data_ptr(), tokens.data_ptr(), verified.data_ptr(), verified.shape[1],
        last_token.data_ptr(), length.data_ptr(), proposed.data_ptr(), drafts.data_ptr(), drafts.shape[0],
        floats.data_ptr(), ints.data_ptr(), counts.data_ptr(), history.data_ptr(), counts.shape[1],
        history.shape[1], _reached("verified_host", host, verified),
    )  # fmt: skip


def _advance_cpu(*args: Any) -> None:
    run_kernel("advance", _core.advance_slots_cpu(_advance_call(*args)))


def _advance_cuda(sampled: Tensor, *args: Any) -> None:
    launch_cuda(_core.advance_slots_cuda, _advance_call, sampled, *args)


def _keep_call(logits: Tensor, kept: Tensor, slot: Tensor, ints: Tensor) -> _core.KeepCall:
    check_logits(logits, in_place=False)
    require(
        kept.shape == logits.shape and kept.dtype is logits.dtype and kept.is_contiguous(),
        f"kept must be {list(logits.shape)} {logits.dtype}, contiguous; got {list(kept.shape)} {kept.dtype}",
    )
    positions = logits.shape[0] // max(slot.shape[0], 1)
    return _core.keep_call(
        *native_logits(logits), kept.data_ptr(), max(positions, 1), ints.shape[1], slot.data_ptr(), ints.data_ptr()
    )  # fmt: skip


def _keep_cpu(*tensors: Tensor) -> None:
    run_kernel("keep_logits", _core.keep_logits_cpu(_keep_call(*tensors)))


def _keep_cuda(logits: Tensor, *tensors: Tensor) -> None:
    launch_cuda(_core.keep_logits_cuda, _keep_call, logits, *tensors)


SAMPLE = register(
    f"sample_slots_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor inputs, {_PARAMS},"
    " Tensor? temperatures=None) -> Tensor",
    cpu=_sample_cpu,
    cuda=_sample_cuda,
    fake=_check_sample,
)
PICK = register(
    "pick_drafts_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor count, Tensor(b!) drafts, int number,"
    f" {_PARAMS}, Tensor? temperatures, Tensor? proposed, Tensor? d2t, Tensor(c!) out,"
    " Tensor(d!)? drafts_host=None) -> ()",
    cpu=_pick_cpu,
    cuda=_pick_cuda,
    fake=_check_pick,
)
ADVANCE = register(
    "advance_slots_(Tensor sampled, Tensor slot, Tensor base, Tensor inputs, Tensor(a!) count, Tensor(b!) tokens,"
    " Tensor(c!) verified, Tensor(d!) last_token, Tensor(e!) length, Tensor(f!) proposed, Tensor(g!) drafts,"
    " Tensor(h!) verified_host, Tensor(k!) floats, Tensor ints, Tensor(i!) counts, Tensor(j!) history,"
    " bool is_counted) -> ()",
    cpu=_advance_cpu,
    cuda=_advance_cuda,
)
KEEP = register(
    "keep_logits_(Tensor logits, Tensor(a!) kept, Tensor slot, Tensor ints) -> ()",
    cpu=_keep_cpu,
    cuda=_keep_cuda,
)


def _inputs_call(
    slot: Tensor,
    length: Tensor,
    last_token: Tensor,
    drafts: Tensor,
    page_table: Tensor,
    base: Tensor,
    tokens: Tensor,
    pages: Tensor,
) -> _core.InputsCall:
    rows, width = tokens.shape
    require(width <= drafts.shape[0] + 1, f"there are {drafts.shape[0]} drafts by slot, not {width - 1}")
    require(
        tokens.is_contiguous() and pages.is_contiguous() and pages.shape == (rows, page_table.shape[1]),
        f"tokens and pages must be contiguous, pages {[rows, page_table.shape[1]]}; got {list(pages.shape)}",
    )
    return _core.inputs_call(
        slot.data_ptr(), length.data_ptr(), last_token.data_ptr(), drafts.data_ptr(), page_table.data_ptr(),
        base.data_ptr(), tokens.data_ptr(), pages.data_ptr(), rows, width, length.shape[0], page_table.shape[1],
    )  # fmt: skip


def _inputs_cpu(*tensors: Tensor) -> None:
    run_kernel("read_slots", _core.read_slots_cpu(_inputs_call(*tensors)))


def _inputs_cuda(slot: Tensor, *tensors: Tensor) -> None:
    launch_cuda(_core.read_slots_cuda, _inputs_call, slot, *tensors)


def _proposals_call(
    slot: Tensor, proposed: Tensor, drafts: Tensor, number: int, ints: Tensor
) -> _core.ProposalsCall:
    require(0 <= number <= drafts.shape[0], f"there are {drafts.shape[0]} drafts by slot, not {number}")
    _check_like("proposed", proposed, "drafts", drafts)
    return _core.proposals_call(
        slot.data_ptr(), _reached("proposed", proposed, drafts), ints[3].data_ptr(), drafts.data_ptr(), slot.shape[0],
        number, drafts.shape[1],
    )  # fmt: skip


def _proposals_cpu(*args: Any) -> None:
    run_kernel("take_proposals", _core.take_proposals_cpu(_proposals_call(*args)))


def _proposals_cuda(slot: Tensor, *args: Any) -> None:
    launch_cuda(_core.take_proposals_cuda, _proposals_call, slot, *args)


INPUTS = register(
    "read_slots_(Tensor slot, Tensor length, Tensor last_token, Tensor drafts, Tensor page_table, Tensor(a!) base,"
    " Tensor(b!) tokens, Tensor(c!) pages) -> ()",
    cpu=_inputs_cpu,
    cuda=_inputs_cuda,
)
PROPOSALS = register(
    "take_proposals_(Tensor slot, Tensor proposed, Tensor(a!) drafts, int number, Tensor ints) -> ()",
    cpu=_proposals_cpu,
    cuda=_proposals_cuda,
)
