"""Branching: before an iteration, each slot of a beam search copies its parent slot's text and appends a token."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts
from weft.engine.sequence import Branching
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime


@dataclass(frozen=True)
class BranchInputs:
    """The input of `branch` for n beams, in pinned memory.

    slots, parents, tokens, positions: int64 [n], as in `BranchRow`.
    pages: int32 [n, P], the pages of each slot.
    copies: int64, the sources and the targets of the pages to copy first; None without copies.
    """

    slots: Tensor
    parents: Tensor
    tokens: Tensor
    positions: Tensor
    pages: Tensor
    copies: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, runtime: Runtime, branchings: abc.Sequence[Branching], pages_per_slot: int) -> BranchInputs:
        """Copy the branchings of all beam searches in the iteration to pinned memory."""
        rows = [row for branching in branchings for row in branching.rows]
        columns = zip(*((row.slot, row.parent, row.token, row.position) for row in rows), strict=True)
        slots, parents, tokens, positions = (pinned_copy(runtime, column, torch.int64) for column in columns)
        pages = runtime.pinned((len(rows), pages_per_slot), torch.int32)
        pages.zero_()
        for number, row in enumerate(rows):
            pages[number, : len(row.pages)] = torch.tensor(row.pages, dtype=torch.int32)
        pairs = [pair for branching in branchings for pair in branching.copies]
        copies = None
        if pairs:
            sources, targets = zip(*pairs, strict=True)
            copies = pinned_copy(runtime, sources, torch.int64), pinned_copy(runtime, targets, torch.int64)
        return cls(slots, parents, tokens, positions, pages, copies)


def branch(parts: DecodeParts, inputs: BranchInputs) -> None:
    """Give each slot its parent's text and one more token. A slot may be the parent of another slot. A device
    function."""
    state, device = parts.state, parts.state.length.device
    if inputs.copies is not None:
        sources, targets = (pages.to(device, non_blocking=True) for pages in inputs.copies)
        for cache in parts.caches:
            cache.copy_pages(sources, targets)
    columns = (inputs.slots, inputs.parents, inputs.tokens, inputs.positions, inputs.pages)
    slots, parents, tokens, positions, pages = (tensor.to(device, non_blocking=True) for tensor in columns)
    if parts.kv.states is not None:
        parts.kv.states.branch(slots, parents)
    state.page_table.index_copy_(0, slots, pages)
    state.length.index_copy_(0, slots, positions)
    state.last_token.index_copy_(0, slots, tokens)
    params = state.params
    for table in (params.counts, params.history):
        # `index_select` copies all parents before any slot is written, since a slot may be a parent too.
        table.index_copy_(0, slots, table.index_select(0, parents))
    ones = torch.ones_like(slots, dtype=torch.int32)
    params.counts.index_put_((slots, tokens), ones, accumulate=True)
    params.history.index_put_((slots, positions), tokens.to(torch.int32))
