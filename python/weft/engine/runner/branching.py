"""Where texts part: before an iteration a slot goes on with another slot's text and a token that the host chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts
from weft.engine.runner.opening import copy_pages, pinned_pairs
from weft.engine.sequence import Branching
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime


@dataclass(frozen=True)
class BranchInputs:
    """Rows of one iteration in pinned memory: int64 [N] `slots`, `parents`, `tokens` and `positions`, `pages` int32
    [N, P], and the pages to copy before."""

    slots: Tensor
    parents: Tensor
    tokens: Tensor
    positions: Tensor
    pages: Tensor
    copies: tuple[Tensor, Tensor] | None

    @classmethod
    def of(cls, runtime: Runtime, branchings: Sequence[Branching], pages_per_slot: int) -> BranchInputs:
        """Of requests whose texts part before the same iteration."""
        rows = [row for branching in branchings for row in branching.rows]
        columns = zip(*((row.slot, row.parent, row.token, row.position) for row in rows), strict=True)
        slots, parents, tokens, positions = (pinned_copy(runtime, column, torch.int64) for column in columns)
        pages = runtime.pinned((len(rows), pages_per_slot), torch.int32)
        pages.zero_()
        for number, row in enumerate(rows):
            pages[number, : len(row.pages)] = torch.tensor(row.pages, dtype=torch.int32)
        copies = [pair for branching in branchings for pair in branching.copies]
        return cls(slots, parents, tokens, positions, pages, pinned_pairs(runtime, copies))


def branch(parts: DecodeParts, inputs: BranchInputs) -> None:
    """Make each slot's text its parent's and one token more; a slot may be both, of different rows. A device
    function."""
    if inputs.copies is not None:
        copy_pages(parts, *inputs.copies)
    state, device = parts.state, parts.state.length.device
    given = (inputs.slots, inputs.parents, inputs.tokens, inputs.positions, inputs.pages)
    slots, parents, tokens, positions, pages = (tensor.to(device, non_blocking=True) for tensor in given)
    state.page_table.index_copy_(0, slots, pages)
    state.length.index_copy_(0, slots, positions)
    state.last_token.index_copy_(0, slots, tokens)
    params = state.params
    for table in (params.counts, params.history):
        table.index_copy_(0, slots, table.index_select(0, parents))
    ones = torch.ones_like(slots, dtype=torch.int32)
    params.counts.index_put_((slots, tokens), ones, accumulate=True)
    params.history.index_put_((slots, positions), tokens.to(torch.int32))
