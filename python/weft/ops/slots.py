"""Sampling by slot: what requests ask of their logits lies on the device, and one captured call serves every mix of
them.

A request's parameters are numbers in its slot's rows of `SlotParams`, neutral where it asks for nothing. So no kernel
launch, and no graph, depends on what requests ask. R slots, B batch rows, T = 1 + K positions, K drafts, V vocabulary,
N = B * T logits rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft import _core
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
    stream_of,
)


@dataclass(frozen=True)
class SlotParams:
    """Sampling parameters of R slots and what penalties know of their texts; on one device, all contiguous.

    `vocab` is the target's vocabulary, M the room for bad words, E that for end tokens, L the most tokens of a text.
    """

    floats: Tensor
    """[6, R] float32: temperature, top_p, min_p (`truncation_floor`), repetition, presence, frequency (`Penalties`)."""
    longs: Tensor
    """[2, R] int64: the seed, and the position until which end tokens are blocked (`suppress_ends_`)."""
    ints: Tensor
    """[6, R] int32: top_k; whether the slot's text is penalised, and its bias read (`Penalties`); how many drafts it
    may have; whether it wants log-probabilities; whether the host chooses its tokens, so that verification leaves it
    where it is."""
    counts: Tensor
    """[R, vocab] int32, as in `Penalties`, and so are `prompt`, `bias`, `bad_words` [R, M] and `history` [R, L]."""
    prompt: Tensor
    bias: Tensor
    bad_words: Tensor
    history: Tensor
    ends: Tensor
    """[R, E] int32: the tokens that would end a slot's request; -1 is none."""

    @staticmethod
    def neutral(
        slots: int, vocab: int, bad_words: int, ends: int, max_length: int, device: torch.device
    ) -> SlotParams:
        """Tables of slots that ask for nothing. Before its slot is written a row's temperature is 0."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        floats = zeros(6, slots, dtype=torch.float32)
        floats[1] = 1.0
        return SlotParams(
            floats=floats,
            longs=zeros(2, slots, dtype=torch.int64),
            ints=zeros(6, slots, dtype=torch.int32),
            counts=zeros(slots, vocab, dtype=torch.int32),
            prompt=zeros(slots, -(-vocab // 32), dtype=torch.int32),
            bias=zeros(slots, vocab, dtype=torch.float32),
            bad_words=zeros(slots, bad_words, dtype=torch.int32) - 1,
            history=zeros(slots, max_length, dtype=torch.int32),
            ends=zeros(slots, ends, dtype=torch.int32) - 1,
        )

    @property
    def max_drafts(self) -> Tensor:
        """[R] int32: how many drafts each slot may have."""
        return self.ints[3]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the operations' arguments."""
        return (
            self.floats, self.longs, self.ints, self.counts, self.prompt, self.bias, self.bad_words, self.history,
            self.ends,
        )  # fmt: skip


def sample_slots_(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    params: SlotParams,
    temperatures: Tensor | None = None,
) -> Tensor:
    """The target's token at every position, [N] int64, -1 where there is none; `logits` keep what parameters changed.

    logits: [N, V] float32, float16 or bfloat16; row b * T + t is position t of batch row b.
    slot, base: [B] int64: the batch row's slot, and the position of its last committed token.
    inputs: [B, T] int64: that token, then the drafts; position t has seen t of them.
    temperatures: float32, P >= T for each slot: those that are not negative go before the slot's own.
    In this order: penalties, bias and bad words (`penalize_`), `suppress_ends_`, `truncation_floor`, `sample`. Raises
    `InputError` for tensors that are not as above, and `InterfaceError` for CUDA tensors in a build without CUDA.
    """
    token: Tensor = _SAMPLE(logits, slot, base, inputs, *params.tensors, temperatures)
    return token


def pick_drafts_(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    count: Tensor,
    drafts: Tensor,
    number: int,
    params: SlotParams,
    temperatures: Tensor | None = None,
    proposed: Tensor | None = None,
    d2t: Tensor | None = None,
) -> Tensor:
    """Draft `number` (from 1) of every batch row, [B] int64 in the target's ids; it is written to `drafts`, too.

    It is drawn as the target's token at its position will be (`sample_slots_`), but for `suppress_ends_`, after the
    drafts before it. -1 is none: where the logits leave nothing, and beyond the slot's own limit of drafts.

    logits: [B, V] of the drafter. slot, base: as in `sample_slots_`. count: [B] int64, how many drafts verification
    accepted. drafts, proposed: [K, R] int64 by slot; what the host proposed goes before, unless it is -1. d2t: [V]
    int64; column c stands for token c + d2t[c].
    """
    token: Tensor = _PICK(
        logits, slot, base, count, drafts, number, *params.tensors, temperatures, proposed, d2t
    )
    return token


def advance_slots_(
    sampled: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    count: Tensor,
    tokens: Tensor,
    slots: tuple[Tensor, ...],
    params: SlotParams,
    is_counted: bool = False,
) -> None:
    """Verify the drafts and move every slot to the end of what is committed, in place.

    sampled: [B, T] int64, the target's tokens; inputs: [B, T] int64, of which all but the first are drafts. The leading
    drafts that equal the target's tokens are accepted: how many goes to `count` [B] int64 (with `is_counted` it says
    so already), the tokens to `tokens` [B, T].
    slots: by slot `verified` [R, K + 2] (count, then tokens), `last_token`, `length`, `proposed` [R] (how many drafts
    there were, where T > 1) and `drafts` [K, R], of which those beyond T - 1 become -1; all int64. The last slot pads:
    it stays at length 0. Tokens of slots with penalties are counted.
    """
    _ADVANCE(
        sampled, slot, base, inputs, count, tokens, *slots, params.ints, params.counts, params.history, is_counted
    )  # fmt: skip


def keep_logits_(logits: Tensor, kept: Tensor, slot: Tensor, params: SlotParams) -> None:
    """Copy the rows of `logits` [N, V] whose slots want log-probabilities to `kept` [N, V], contiguous. slot: [B]."""
    _KEEP(logits, kept, slot, params.ints)


# -- the operations

_PARAMS = (
    "Tensor floats, Tensor longs, Tensor ints, Tensor counts, Tensor prompt, Tensor bias, Tensor bad_words,"
    " Tensor history, Tensor ends"
)
_NUM_PARAMS = 9


def _tables(tensors: tuple[Tensor, ...]) -> _core.SlotTables:
    _, _, _, counts, _, _, bad_words, history, ends = tensors
    slots, vocab = counts.shape
    return _core.SlotTables(
        slots, vocab, bad_words.shape[1], history.shape[1], ends.shape[1], *[t.data_ptr() for t in tensors]
    )


def _given(rest: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """What follows the parameters, of which torch's dispatcher leaves out what is None at the end."""
    return (*rest[_NUM_PARAMS:], *[None] * count)[:count]


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _width(temperatures: Tensor | None, slots: int) -> int:
    return 0 if temperatures is None else temperatures.numel() // slots


def _check_rows(logits: Tensor, slot: Tensor, base: Tensor) -> None:
    check_logits(logits, in_place=True)
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
        _pointer(temperatures), _width(temperatures, rest[3].shape[0]), out.data_ptr(),
    )  # fmt: skip
    return call, out


def _check_pick(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> Tensor:
    _check_rows(logits, slot, base)
    check_vector("count", count, (torch.int64,), slot.shape[0], logits)
    require(1 <= number <= drafts.shape[0], f"draft number {number} is not one of {drafts.shape[0]}")
    return torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)


def _draft_call(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> tuple[_core.SlotCall, Tensor]:
    out = _check_pick(logits, slot, base, count, drafts, number)
    tables, (temperatures, proposed, d2t) = _tables(rest[:_NUM_PARAMS]), _given(rest, 3)
    call = _core.draft_call(
        *native_logits(logits), number, tables, slot.data_ptr(), base.data_ptr(), count.data_ptr(),
        drafts.data_ptr(), _pointer(temperatures), _width(temperatures, rest[3].shape[0]), _pointer(proposed),
        _pointer(d2t), out.data_ptr(),
    )  # fmt: skip
    return call, out


def _run_cuda(call: _core.SlotCall, logits: Tensor) -> None:
    require_cuda_kernels()
    sms = multiprocessors(logits.get_device())
    size = _core.sample_slots_workspace_cuda(call, sms)
    workspace = torch.empty(size, dtype=torch.uint8, device=logits.device)
    with device_of(logits):
        check_cuda(_core.sample_slots_cuda(call, sms, workspace.data_ptr(), stream_of(logits)))


def _sample_cpu(*args: Any) -> Tensor:
    call, out = _target_call(*args)
    _core.sample_slots_cpu(call, torch.get_num_threads())
    return out


def _sample_cuda(logits: Tensor, *args: Any) -> Tensor:
    call, out = _target_call(logits, *args)
    _run_cuda(call, logits)
    return out


def _pick_cpu(*args: Any) -> Tensor:
    call, out = _draft_call(*args)
    _core.sample_slots_cpu(call, torch.get_num_threads())
    return out


def _pick_cuda(logits: Tensor, *args: Any) -> Tensor:
    call, out = _draft_call(logits, *args)
    _run_cuda(call, logits)
    return out


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
    count, tokens, verified, last_token, length, proposed, drafts, ints, counts, history, is_counted = rest
    return _core.advance_call(
        rows, width, verified.shape[0], slot.data_ptr(), base.data_ptr(), inputs.data_ptr(), sampled.data_ptr(),
        is_counted, count.data_ptr(), tokens.data_ptr(), verified.data_ptr(), verified.shape[1],
        last_token.data_ptr(), length.data_ptr(), proposed.data_ptr(), drafts.data_ptr(), drafts.shape[0],
        ints.data_ptr(), counts.data_ptr(), history.data_ptr(), counts.shape[1], history.shape[1],
    )  # fmt: skip


def _advance_cpu(*args: Any) -> None:
    _core.advance_slots_cpu(_advance_call(*args))


def _advance_cuda(sampled: Tensor, *args: Any) -> None:
    require_cuda_kernels()
    with device_of(sampled):
        check_cuda(_core.advance_slots_cuda(_advance_call(sampled, *args), stream_of(sampled)))


def _advance_fake(*args: Any) -> None:
    return None


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
    _core.keep_logits_cpu(_keep_call(*tensors))


def _keep_cuda(logits: Tensor, *tensors: Tensor) -> None:
    require_cuda_kernels()
    with device_of(logits):
        check_cuda(_core.keep_logits_cuda(_keep_call(logits, *tensors), stream_of(logits)))


_SAMPLE = register(
    f"sample_slots_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor inputs, {_PARAMS},"
    " Tensor? temperatures=None) -> Tensor",
    cpu=_sample_cpu,
    cuda=_sample_cuda,
    fake=_check_sample,
)
_PICK = register(
    "pick_drafts_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor count, Tensor(b!) drafts, int number,"
    f" {_PARAMS}, Tensor? temperatures=None, Tensor? proposed=None, Tensor? d2t=None) -> Tensor",
    cpu=_pick_cpu,
    cuda=_pick_cuda,
    fake=_check_pick,
)
_ADVANCE = register(
    "advance_slots_(Tensor sampled, Tensor slot, Tensor base, Tensor inputs, Tensor(a!) count, Tensor(b!) tokens,"
    " Tensor(c!) verified, Tensor(d!) last_token, Tensor(e!) length, Tensor(f!) proposed, Tensor(g!) drafts,"
    " Tensor ints, Tensor(h!) counts, Tensor(i!) history, bool is_counted) -> ()",
    cpu=_advance_cpu,
    cuda=_advance_cuda,
    fake=_advance_fake,
)
_KEEP = register(
    "keep_logits_(Tensor logits, Tensor(a!) kept, Tensor slot, Tensor ints) -> ()",
    cpu=_keep_cpu,
    cuda=_keep_cuda,
    fake=_advance_fake,
)
