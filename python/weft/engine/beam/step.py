"""One iteration of beam search on the device: two captured parts, between which the host makes the grammar's masks.

`beam_forward` reads each beam's last token, `beam_select` finds the likeliest continuations of each. Which of them live
on is the host's to say, so the next iteration begins with what it sends: where each beam's token stands, in which
pages, and whose text it continues.

Suffixes: N rows, one for each beam, V vocabulary, C continuations, P pages, W words of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.engine.device.sampling import SamplingRow, write_slot
from weft.engine.device.state import DecodeParts, SlotState
from weft.models.base import KVIndex
from weft.ops.log_probs import log_probs
from weft.ops.penalties import Penalties, count_tokens_, penalize_
from weft.ops.suppress_ends import suppress_ends_
from weft.ops.token_mask import apply_token_bitmask_


@dataclass(frozen=True)
class BeamPlan:
    """What distinguishes iterations, and their graphs: `rows` beams (a bucket) of which each offers `offered`
    continuations; whether some row is `guided`, and whether some row is `shaped` by sampling parameters."""

    rows: int
    offered: int
    guided: bool
    shaped: bool


@dataclass(frozen=True)
class BeamBuffers:
    """What crosses the parts of an iteration. `inputs_4N` are slots, the slots whose text they continue, tokens and
    their positions, all int64; a row that only pads is of the dummy slot, and its pages are nobody's.

    `values_NC` float32 and `ids_NC` int64 are the likeliest continuations of each row, likeliest first; -inf is
    impossible.
    """

    inputs_4N: Tensor
    pages_NP: Tensor
    masks_NW: Tensor
    is_masked_N: Tensor
    logits_NV: Tensor
    values_NC: Tensor
    ids_NC: Tensor

    @classmethod
    def allocate(cls, rows: int, offered: int, parts: DecodeParts) -> BeamBuffers:
        """Buffers of `rows` rows, all of which pad."""
        config, state = parts.model.config, parts.state

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=state.length.device)

        inputs_4N = zeros(4, rows, dtype=torch.int64)
        inputs_4N[:2].fill_(state.dummy)
        return cls(
            inputs_4N=inputs_4N,
            pages_NP=zeros(rows, state.page_table.shape[1], dtype=torch.int32),
            masks_NW=zeros(rows, -(-config.vocab_size // 32), dtype=torch.int32),
            is_masked_N=zeros(rows, dtype=torch.int32),
            logits_NV=zeros(rows, config.vocab_size, dtype=config.dtype),
            values_NC=zeros(rows, offered, dtype=torch.float32),
            ids_NC=zeros(rows, offered, dtype=torch.int64),
        )


def open_beams(state: SlotState, row: SamplingRow, slots: tuple[int, ...]) -> None:
    """Make the slots of the beams the request's. A device function."""
    for slot in slots:
        write_slot(state.sampling, row, slot)


def copy_beam_pages(parts: DecodeParts, pairs_2M: Tensor) -> None:
    """Copy pages that beams part in; `pairs_2M` int64 in pinned memory: from, to. A device function."""
    sources, targets = pairs_2M.to(parts.state.length.device, non_blocking=True).unbind(0)
    parts.kv.copy_pages(sources, targets)


def read_prompt_chunk(
    plan: BeamPlan,
    parts: DecodeParts,
    buf: BeamBuffers,
    tokens: Tensor,
    pages: Tensor,
    start: int,
    is_last: bool,
) -> None:
    """The forward over a chunk of one prompt that begins at `start`, and the logits of the prompt's last token: the one
    row of `buf`. `tokens` int64 and `pages` int32 are in pinned memory. A device function."""
    device = parts.state.length.device
    positions_1T = torch.arange(start, start + tokens.shape[0], device=device)[None]
    index = KVIndex.at(pages.to(device, non_blocking=True)[None], positions_1T)
    hidden = parts.model.forward(tokens.to(device, non_blocking=True)[None], parts.kv, index)
    if is_last:
        buf.logits_NV.copy_(parts.model.logits(hidden.last[:, -1]))
        if plan.shaped:
            penalize_beams(parts.state.sampling.penalties, buf)


def beam_forward(plan: BeamPlan, parts: DecodeParts, buf: BeamBuffers) -> None:
    """The forward over each beam's last token, and what changes its logits before the mask."""
    slots_N, parents_N, tokens_N, positions_N = buf.inputs_4N.unbind(0)
    penalties = parts.state.sampling.penalties
    if plan.shaped:
        inherit(penalties, slots_N, parents_N)
        count_tokens_(penalties, slots_N, tokens_N[:, None], torch.ones_like(slots_N), positions_N)
    index = KVIndex.at(buf.pages_NP, positions_N[:, None])
    hidden = parts.model.forward(tokens_N[:, None], parts.kv, index)
    buf.logits_NV.copy_(parts.model.logits(hidden.last[:, 0]))
    if plan.shaped:
        penalize_beams(penalties, buf)


def beam_select(plan: BeamPlan, parts: DecodeParts, buf: BeamBuffers) -> None:
    """The likeliest continuations of each beam under its mask, with the logarithms of their probabilities."""
    sampling = parts.state.sampling
    slots_N, _, _, positions_N = buf.inputs_4N.unbind(0)
    if plan.guided:
        apply_token_bitmask_(buf.logits_NV, buf.masks_NW, token_mask=buf.is_masked_N)
    logits_NV = buf.logits_NV
    if plan.shaped:
        suppress_ends_(logits_NV, slots_N, sampling.ends, sampling.until, positions_N + 1)
        temperature_N = sampling.temperature.index_select(0, slots_N)
        temperature_N = torch.where(temperature_N > 0, temperature_N, 1.0)
        logits_NV = logits_NV.float() / temperature_N[:, None]
    values, ids = log_probs(logits_NV, torch.full_like(slots_N, -1), plan.offered)
    buf.values_NC.copy_(values[:, 1:])
    buf.ids_NC.copy_(ids[:, 1:])


def inherit(penalties: Penalties, slots_N: Tensor, parents_N: Tensor) -> None:
    """Make each slot's text that of the slot which it continues; a slot may be both, of different beams."""
    for tensor in (penalties.counts, penalties.history):
        tensor.index_copy_(0, slots_N, tensor.index_select(0, parents_N))


def penalize_beams(penalties: Penalties, buf: BeamBuffers) -> None:
    """Penalties, bias and bad words on the logits behind each beam's last token."""
    slots_N, _, _, positions_N = buf.inputs_4N.unbind(0)
    none_N0 = slots_N.new_empty(slots_N.shape[0], 0)
    penalize_(buf.logits_NV, slots_N, penalties, positions_N + 1, none_N0, torch.zeros_like(slots_N))
