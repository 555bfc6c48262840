"""Sampling by slot. A request's sampling parameters are on the device, in the record of its slot.

Parameters that a request does not set are neutral in its record. So one captured call serves every mix of requests, and
graphs do not depend on the requests. Letters: R slots, B batch rows, K drafts, T = 1 + K positions, N = B * T rows of
logits, V vocabulary.

Sampling uses the Gumbel-max trick: a token is the argmax of logits / temperature + noise
(`csrc/kernels/sampling/gumbel.h`). The noise -log(-log(u)) is a Gumbel variate, so the token is distributed as
softmax(logits / temperature). The noise depends only on the request's seed, the position and the target's token id. So
a drafter with the same noise tends to draw the target's token, and a draft is accepted if it equals that token. A seed
gives the same text for every drafter, batch and load.

The public functions come first. The code below them checks tensors, passes their addresses and sizes to native calls,
and registers the operations as `torch.ops.weft.*` for the CPU and CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

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

SlotRecord: TypeAlias = _core.SlotRecord
BiasKind: TypeAlias = _core.BiasKind
RECORD_WORDS = len(bytes(SlotRecord())) // 8
"""The size of a record in words of 8 bytes."""
LOWEST_TEMPERATURE = _core.LOWEST_TEMPERATURE
"""Temperatures below this mean greedy sampling."""

_DTYPES = {"i8": torch.int64, "f4": torch.float32, "i4": torch.int32}
_RECORD_FIELDS = SlotRecord.fields()


@dataclass(frozen=True)
class SlotParams:
    """The records of R slots, and tables with a row for each slot: token counts, biases, texts and more. All are
    contiguous and on one device.

    Each field of `SlotRecord` is also an attribute, such as `params.temperature`: a writable view [R] of the records.

    `vocab` is the size of the target's vocabulary. M and E are the capacities for bad words and for end tokens, L is
    the largest number of tokens in a text.
    """

    records: Tensor
    """[R, W] int64: the bytes of a `_core.SlotRecord` for each slot."""
    counts: Tensor
    """[R, vocab] int32: the count of each token in the output and in the counted part of the prompt."""
    prompt: Tensor
    """[R, ceil(vocab / 32)] int32; bit t % 32 of word t // 32 is set if token t is in the prompt."""
    bias: Tensor
    """[R, vocab] float32, added to the logits; may be -inf."""
    bad_words: Tensor
    """[R, M] int32: token sequences, each ended by -1 or by the end of the row. An empty sequence ends the list."""
    history: Tensor
    """[R, L] int32: the tokens of the prompt and the output by position."""
    ends: Tensor
    """[R, E] int32: the end tokens of a slot's request; -1 means none."""

    def __getattr__(self, name: str) -> Tensor:
        """A field of the records, [R]. csrc/kernels/sampling/slot_record.h documents each."""
        if name not in _RECORD_FIELDS:
            raise AttributeError(f"SlotParams has no {name!r}, and neither has SlotRecord")
        layout, offset = _RECORD_FIELDS[name]
        dtype = _DTYPES[layout]
        return self.records.view(dtype)[:, offset // dtype.itemsize]

    @staticmethod
    def neutral(
        slots: int, vocab: int, bad_words: int, ends: int, max_length: int, device: torch.device
    ) -> SlotParams:
        """Allocate neutral records and tables: temperature 0, no drafts, no changes to logits."""

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        record = torch.frombuffer(bytearray(bytes(SlotRecord())), dtype=torch.int64)
        return SlotParams(
            records=record.repeat(slots, 1).to(device),
            counts=zeros(slots, vocab, dtype=torch.int32),
            prompt=zeros(slots, -(-vocab // 32), dtype=torch.int32),
            bias=zeros(slots, vocab, dtype=torch.float32),
            bad_words=zeros(slots, bad_words, dtype=torch.int32) - 1,
            history=zeros(slots, max_length, dtype=torch.int32),
            ends=zeros(slots, ends, dtype=torch.int32) - 1,
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the operations' arguments."""
        return (
            self.records, self.counts, self.prompt, self.bias, self.bad_words, self.history, self.ends,
        )  # fmt: skip


def sample_slots_(
    logits: Tensor,
    slot: Tensor,
    base: Tensor,
    inputs: Tensor,
    params: SlotParams,
    temperatures: Tensor | None = None,
) -> Tensor:
    """Sample the target's token at every position. Returns int64 [N], -1 if every logit is -inf or NaN. All steps
    before the truncation change `logits` in place.

    logits: [N, V] float32, float16 or bfloat16, with any row stride, V at most 2^23; row b * T + t is position t of
        batch row b.
    slot, base: [B] int64: the batch row's slot, and the position of its last committed token.
    inputs: [B, T] int64: the last committed token, then the drafts (-1: no draft). At position t, the first t drafts
        count as output.
    temperatures: float32, P >= T values for each slot. A value that is not negative replaces the slot's temperature at
        its position.

    The steps, in order:
    1. Repetition, presence and frequency penalties, then the bias. With `penalties_after_temperature` the bias comes
       first, and presence and frequency penalties are subtracted from logits / temperature. The step computes in
       float32 and rounds once to the logits' dtype. The result is finite if logits and bias are.
    2. Bad words and n-grams: tokens that would complete a bad word or repeat an n-gram of the text are blocked.
    3. End tokens are blocked before `ends_allowed_from`, unless every other logit is -inf or NaN.
    4. If a bias exceeds 10,000, the row's largest logit is subtracted from all, so that float32 does not lose the
       noise.
    5. Truncation: top-k, top-p and min-p. Each keeps all ties with its last token.
    6. The draw: the argmax of logits / temperature + noise. A NaN never wins; among equal sums the lowest token id
       wins.

    The last slot is for rows that pad a batch: their logits are neither read nor changed, and their token is -1. If a
    slot number is out of bounds, its logits stay unchanged. Raises `InputError` for other shapes or dtypes, and
    `InterfaceError` for CUDA tensors in a build without CUDA.
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
    *,
    out: Tensor,
    drafts_host: Tensor | None = None,
) -> None:
    """Draw draft `number` (from 1) of every batch row. Writes it, as a target token id, to `out` [B] int64 and to
    `drafts`.

    The draft is drawn like the target's token at the same position (`sample_slots_`), after the earlier drafts. But end
    tokens are always allowed. The draft is -1 if every logit is -inf or NaN, or if `number` exceeds the slot's limit.
    In rows of the last slot, which pad a batch, it is -1 in `out`, and `drafts` stays as it is.

    logits: [B, V], the drafter's. slot, base: as in `sample_slots_`. count: [B] int64, the number of accepted drafts.
    temperatures: as in `sample_slots_`, but every draft uses the slot's first value.
    drafts, proposed: [K, R] int64 by slot. A token that the host proposed replaces the draw unless it is -1.
    d2t: [V] int64; column c stands for token c + d2t[c].
    drafts_host: written like `drafts`. `drafts_host` and `proposed` may be in host memory, pinned for CUDA.
    """
    _PICK(
        logits, slot, base, count, drafts, number, *params.tensors, temperatures, proposed, d2t, out, drafts_host
    )  # fmt: skip


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
    """Verify the drafts, and advance every slot past its newly committed tokens, in place.

    sampled: [B, T] int64, the target's tokens.
    inputs: [B, T] int64; all but the first of a row are drafts. The leading drafts that equal the target's tokens are
        accepted.
    count: [B] int64, receives the number of accepted drafts. With `is_counted` it already holds that number, and
        `sampled` then holds the accepted drafts in its first places.
    tokens: [B, T] int64, receives the target's tokens.
    slots: six int64 tensors by slot. `verified` [R, K + 2] receives the count, or `_core.HELD_SLOT` for a held slot,
        then the tokens. `last_token` [R] and `length` [R] are updated. `num_verified` [R] receives the number of drafts
        if T > 1. In `drafts` [K, R], drafts beyond T - 1 become -1. `verified_host` is written like `verified`; it may
        be in host memory, pinned for CUDA.

    Rows of the last slot pad a batch: nothing is written for them. A decaying top_p is updated. If a slot's parameters
    change logits, its tokens are also counted and appended to its history. Of a held slot's tensors, only `verified`
    and `verified_host` are written.
    """
    _ADVANCE(
        sampled, slot, base, inputs, count, tokens, *slots, *params.tensors, is_counted
    )  # fmt: skip


def keep_logits_(logits: Tensor, kept: Tensor, slot: Tensor, params: SlotParams) -> None:
    """Copy the rows of slots that want log-probabilities from `logits` [N, V] to `kept` [N, V], contiguous. slot: int64
    [B]."""
    _KEEP(logits, kept, slot, params.records)


def open_slots_(
    records: Tensor,
    length: Tensor,
    last_token: Tensor,
    request_ids: Tensor,
    processors: Tensor,
    page_table: Tensor,
    params_records: Tensor,
    num_verified: Tensor,
    drafts: Tensor,
    token_mask: Tensor,
    temperatures: Tensor,
) -> None:
    """Write new sequences to their slots, and clear the slots' drafts, masks and guides' temperatures.

    records: [n, 5 + RECORD_WORDS + ceil(P / 2)] int64, contiguous: slot, length, last token, request id, processor, the
        words of a `SlotRecord`, then P pages as int32. The slots differ. A record whose slot is the last one or out of
        bounds is skipped.
    length, last_token, request_ids, processors: [R] int64, written from the records.
    page_table: [R, P] int32. params_records: [R, RECORD_WORDS] int64. Both are written from the records.
    num_verified: [R] int64, becomes 0. drafts: [K, R] int64, become -1.
    token_mask: int32, with the same number of values for each slot, become 0. temperatures: float32, likewise, become
        -1.
    """
    _OPEN(
        records, length, last_token, request_ids, processors, page_table, params_records, num_verified, drafts,
        token_mask, temperatures,
    )  # fmt: skip


def read_slots_(
    slot: Tensor, by_slot: tuple[Tensor, ...], base: Tensor, tokens: Tensor, pages: Tensor
) -> None:
    """Gather an iteration's inputs from the slots of its rows: lengths, last tokens, drafts and pages.

    There are B rows that continue their texts, and C rows after them that only get pages. The last slot is for rows
    that pad a batch: their tokens are not written.

    slot: [B + C] int64. by_slot: `length` and `last_token` [R] int64, `drafts` [K, R] int64 and `page_table` [R, P]
        int32.
    Outputs: base [B + C] int64, of which the first B are written, tokens [B, T] int64 (the last token, then T - 1 <= K
        drafts) and pages [B + C, P] int32.
    """
    _READ(slot, *by_slot, base, tokens, pages)


def take_proposals_(slot: Tensor, proposed: Tensor, drafts: Tensor, number: int, params: SlotParams) -> None:
    """Copy drafts 1..`number` of each row's slot from `proposed` [K, R] int64 to `drafts` [K, R]. Drafts beyond the
    slot's limit become -1. slot: [B] int64. `proposed` may be in host memory, pinned for CUDA."""
    _TAKE(slot, proposed, drafts, number, params.records)


_PARAMS = (
    "Tensor records, Tensor counts, Tensor prompt, Tensor bias, Tensor bad_words, Tensor history, Tensor ends"
)
_WRITTEN_PARAMS = (
    "Tensor(i!) records, Tensor(j!) counts, Tensor prompt, Tensor bias, Tensor bad_words, Tensor(k!) history,"
    " Tensor ends"
)
_NUM_PARAMS = 7
_MAX_COLUMNS = 2**23  # so that the sum of a row's probabilities fits 64 bits


def _tables(tensors: tuple[Tensor, ...]) -> _core.SlotTables:
    _, counts, _, _, bad_words, history, ends = tensors
    slots, vocab = counts.shape
    return _core.slot_tables(
        slots, vocab, bad_words.shape[1], history.shape[1], ends.shape[1], *[t.data_ptr() for t in tensors]
    )


def _after_params(rest: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The `count` arguments that follow the tensors of `SlotParams`."""
    # torch's dispatcher omits trailing arguments that are None, so fill them in.
    return (*rest[_NUM_PARAMS:], *[None] * count)[:count]


def _width(temperatures: Tensor | None, slots: int) -> int:
    return 0 if temperatures is None else temperatures.numel() // slots


def _check_rows(logits: Tensor, slot: Tensor, base: Tensor) -> None:
    check_logits(logits, in_place=True)
    require(logits.shape[1] <= _MAX_COLUMNS, f"logits have {logits.shape[1]} columns; at most {_MAX_COLUMNS}")
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
    tables, (temperatures,) = _tables(rest[:_NUM_PARAMS]), _after_params(rest, 1)
    call = _core.target_call(
        *native_logits(logits), inputs.shape[1], tables, slot.data_ptr(), base.data_ptr(), inputs.data_ptr(),
        address(temperatures), _width(temperatures, rest[0].shape[0]), out.data_ptr(),
    )  # fmt: skip
    return call, out


def _check_pick(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> None:
    _check_rows(logits, slot, base)
    check_vector("count", count, (torch.int64,), slot.shape[0], logits)
    require(1 <= number <= drafts.shape[0], f"draft number {number} is not one of {drafts.shape[0]}")
    slots = rest[0].shape[0]
    require(drafts.shape[1] == slots, f"drafts has {drafts.shape[1]} columns for {slots} slots")
    _, proposed, d2t, out, drafts_host = _after_params(rest, 5)
    if d2t is not None:
        check_vector("d2t", d2t, (torch.int64,), logits.shape[1], logits)
    check_vector("out", out, (torch.int64,), logits.shape[0], logits)
    for name, other in (("proposed", proposed), ("drafts_host", drafts_host)):
        _check_like(name, other, "drafts", drafts)


def _check_like(name: str, tensor: Tensor | None, model: str, like: Tensor) -> None:
    """Raise InputError unless `tensor`, on the device or the host, has the shape and dtype of `like`. None is
    allowed."""
    fits = tensor is None or (
        tensor.shape == like.shape and tensor.dtype is like.dtype and tensor.is_contiguous()
    )
    require(fits, f"{name} must be as {model}, {list(like.shape)} {like.dtype}, contiguous")


def _reached(name: str, tensor: Tensor | None, like: Tensor) -> int:
    """The address of a tensor on the device of `like` or in host memory that the device can reach; 0 for None. Raises
    InputError for other memory."""
    if tensor is None:
        return 0
    is_reachable = tensor.device == like.device or tensor.is_pinned()
    require(is_reachable, f"{name} is in the host's memory, which kernels reach only where it is pinned")
    return tensor.data_ptr()


def _draft_call(
    logits: Tensor, slot: Tensor, base: Tensor, count: Tensor, drafts: Tensor, number: int, *rest: Any
) -> _core.SlotCall:
    _check_pick(logits, slot, base, count, drafts, number, *rest)
    tables, (temperatures, proposed, d2t, out, drafts_host) = (
        _tables(rest[:_NUM_PARAMS]),
        _after_params(rest, 5),
    )
    return _core.draft_call(
        *native_logits(logits), number, tables, slot.data_ptr(), base.data_ptr(), count.data_ptr(),
        drafts.data_ptr(), address(temperatures), _width(temperatures, rest[0].shape[0]),
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
    sampled: Tensor, slot: Tensor, base: Tensor, inputs: Tensor, count: Tensor, tokens: Tensor, *rest: Any
) -> _core.AdvanceCall:
    rows, width = inputs.shape
    check_vector("slot", slot, (torch.int64,), rows, sampled)
    check_vector("base", base, (torch.int64,), rows, sampled)
    fits = sampled.shape == inputs.shape and sampled.is_contiguous() and inputs.is_contiguous()
    require(
        fits, f"sampled and inputs must be contiguous, of one shape; got {sampled.shape} and {inputs.shape}"
    )
    verified, last_token, length, num_verified, drafts, host, *params, is_counted = rest
    _check_like("verified_host", host, "verified", verified)
    return _core.advance_call(
        rows, width, _tables(tuple(params)), slot.data_ptr(), base.data_ptr(), inputs.data_ptr(), sampled.data_ptr(),
        is_counted, count.data_ptr(), tokens.data_ptr(), verified.data_ptr(), verified.shape[1],
        _reached("verified_host", host, verified), last_token.data_ptr(), length.data_ptr(),
        num_verified.data_ptr(), drafts.data_ptr(), drafts.shape[0],
    )  # fmt: skip


def _advance_cpu(*args: Any) -> None:
    run_kernel("advance", _core.advance_slots_cpu(_advance_call(*args)))


def _advance_cuda(sampled: Tensor, *args: Any) -> None:
    launch_cuda(_core.advance_slots_cuda, _advance_call, sampled, *args)


def _keep_call(logits: Tensor, kept: Tensor, slot: Tensor, records: Tensor) -> _core.KeepCall:
    check_logits(logits, in_place=False)
    require(
        kept.shape == logits.shape and kept.dtype is logits.dtype and kept.is_contiguous(),
        f"kept must be {list(logits.shape)} {logits.dtype}, contiguous; got {list(kept.shape)} {kept.dtype}",
    )
    positions = logits.shape[0] // max(slot.shape[0], 1)
    return _core.keep_call(
        *native_logits(logits), kept.data_ptr(), max(positions, 1), records.shape[0], slot.data_ptr(),
        records.data_ptr(),
    )  # fmt: skip


def _keep_cpu(*tensors: Tensor) -> None:
    run_kernel("keep_logits", _core.keep_logits_cpu(_keep_call(*tensors)))


def _keep_cuda(logits: Tensor, *tensors: Tensor) -> None:
    launch_cuda(_core.keep_logits_cuda, _keep_call, logits, *tensors)


_SAMPLE = register(
    f"sample_slots_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor inputs, {_PARAMS},"
    " Tensor? temperatures=None) -> Tensor",
    cpu=_sample_cpu,
    cuda=_sample_cuda,
    fake=_check_sample,
)
_PICK = register(
    "pick_drafts_(Tensor(a!) logits, Tensor slot, Tensor base, Tensor count, Tensor(b!) drafts, int number,"
    f" {_PARAMS}, Tensor? temperatures, Tensor? proposed, Tensor? d2t, Tensor(c!) out,"
    " Tensor(d!)? drafts_host=None) -> ()",
    cpu=_pick_cpu,
    cuda=_pick_cuda,
    fake=_check_pick,
)
_ADVANCE = register(
    "advance_slots_(Tensor sampled, Tensor slot, Tensor base, Tensor inputs, Tensor(a!) count, Tensor(b!) tokens,"
    " Tensor(c!) verified, Tensor(d!) last_token, Tensor(e!) length, Tensor(f!) num_verified, Tensor(g!) drafts,"
    " Tensor(h!) verified_host,"
    f" {_WRITTEN_PARAMS}, bool is_counted) -> ()",
    cpu=_advance_cpu,
    cuda=_advance_cuda,
)
_KEEP = register(
    "keep_logits_(Tensor logits, Tensor(a!) kept, Tensor slot, Tensor records) -> ()",
    cpu=_keep_cpu,
    cuda=_keep_cuda,
)


def _open_call(
    records: Tensor,
    length: Tensor,
    last_token: Tensor,
    request_ids: Tensor,
    processors: Tensor,
    page_table: Tensor,
    params_records: Tensor,
    num_verified: Tensor,
    drafts: Tensor,
    token_mask: Tensor,
    temperatures: Tensor,
) -> _core.OpenCall:
    slots, pages = page_table.shape
    size = 5 + RECORD_WORDS + -(-pages // 2)
    require(
        records.dtype is torch.int64 and records.shape[1:] == (size,) and records.is_contiguous(),
        f"records must be [n, {size}] int64, contiguous; got {list(records.shape)} {records.dtype}",
    )
    for name, tensor in (("page_table", page_table), ("drafts", drafts), ("params_records", params_records)):
        require(tensor.is_contiguous(), f"{name} must be contiguous")
    return _core.open_call(
        records.data_ptr(), length.data_ptr(), last_token.data_ptr(), request_ids.data_ptr(), processors.data_ptr(),
        page_table.data_ptr(), params_records.data_ptr(), num_verified.data_ptr(), drafts.data_ptr(),
        token_mask.data_ptr(), temperatures.data_ptr(), records.shape[0], size, slots, pages, drafts.shape[0],
        token_mask.numel() // slots, temperatures.numel() // slots,
    )  # fmt: skip


def _open_cpu(*tensors: Tensor) -> None:
    run_kernel("open_slots", _core.open_slots_cpu(_open_call(*tensors)))


def _open_cuda(records: Tensor, *tensors: Tensor) -> None:
    launch_cuda(_core.open_slots_cuda, _open_call, records, *tensors)


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
    rows, (sampling_rows, width) = slot.shape[0], tokens.shape
    require(sampling_rows <= rows, f"there are {rows} slots for {sampling_rows} rows of tokens")
    check_vector("base", base, (torch.int64,), rows, slot)
    require(width <= drafts.shape[0] + 1, f"there are {drafts.shape[0]} drafts by slot, not {width - 1}")
    require(
        tokens.is_contiguous() and pages.is_contiguous() and pages.shape == (rows, page_table.shape[1]),
        f"tokens and pages must be contiguous, pages {[rows, page_table.shape[1]]}; got {list(pages.shape)}",
    )
    return _core.inputs_call(
        slot.data_ptr(), length.data_ptr(), last_token.data_ptr(), drafts.data_ptr(), page_table.data_ptr(),
        base.data_ptr(), tokens.data_ptr(), pages.data_ptr(), rows, sampling_rows, width, length.shape[0],
        page_table.shape[1],
    )  # fmt: skip


def _inputs_cpu(*tensors: Tensor) -> None:
    run_kernel("read_slots", _core.read_slots_cpu(_inputs_call(*tensors)))


def _inputs_cuda(slot: Tensor, *tensors: Tensor) -> None:
    launch_cuda(_core.read_slots_cuda, _inputs_call, slot, *tensors)


def _proposals_call(
    slot: Tensor, proposed: Tensor, drafts: Tensor, number: int, records: Tensor
) -> _core.ProposalsCall:
    require(0 <= number <= drafts.shape[0], f"there are {drafts.shape[0]} drafts by slot, not {number}")
    _check_like("proposed", proposed, "drafts", drafts)
    return _core.proposals_call(
        slot.data_ptr(), _reached("proposed", proposed, drafts), records.data_ptr(), drafts.data_ptr(),
        slot.shape[0], number, drafts.shape[1],
    )  # fmt: skip


def _proposals_cpu(*args: Any) -> None:
    run_kernel("take_proposals", _core.take_proposals_cpu(_proposals_call(*args)))


def _proposals_cuda(slot: Tensor, *args: Any) -> None:
    launch_cuda(_core.take_proposals_cuda, _proposals_call, slot, *args)


_OPEN = register(
    "open_slots_(Tensor records, Tensor(a!) length, Tensor(b!) last_token, Tensor(c!) request_ids,"
    " Tensor(d!) processors, Tensor(e!) page_table, Tensor(f!) params_records, Tensor(g!) num_verified,"
    " Tensor(h!) drafts, Tensor(i!) token_mask, Tensor(j!) temperatures) -> ()",
    cpu=_open_cpu,
    cuda=_open_cuda,
)
_READ = register(
    "read_slots_(Tensor slot, Tensor length, Tensor last_token, Tensor drafts, Tensor page_table, Tensor(a!) base,"
    " Tensor(b!) tokens, Tensor(c!) pages) -> ()",
    cpu=_inputs_cpu,
    cuda=_inputs_cuda,
)
_TAKE = register(
    "take_proposals_(Tensor slot, Tensor proposed, Tensor(a!) drafts, int number, Tensor records) -> ()",
    cpu=_proposals_cpu,
    cuda=_proposals_cuda,
)
