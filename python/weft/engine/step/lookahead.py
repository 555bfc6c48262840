"""The target's forward with a window of tokens beside each text, for lookahead decoding (`spec/lookahead.py`).

A row is one causal line: the last token, its drafts, then the window, whose keys go where the next iterations write
theirs. Nothing before the window sees it. What the target says after its tokens is the next window.

Suffixes: B rows, T = 1 + K positions, W tokens of a window, X = T + W, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts, SlotState, StepBuffers
from weft.ops.attention import Rows


def forward_with_windows(parts: DecodeParts, buf: StepBuffers) -> None:
    """The logits of every row's last token and drafts, and each slot's next window."""
    state, verified = parts.state, buf.verified
    (batch, width), beside = buf.tokens_BT.shape, state.num_beside
    line_BX, place_BW = _lines(state, buf)
    rows = Rows(verified.page_table_BP, verified.base_B, width + beside)
    hidden_BXH = parts.model.forward(line_BX, parts.kv, rows).last
    size = hidden_BXH.shape[2]
    of_windows = hidden_BXH.gather(1, place_BW[:, :, None].expand(batch, beside, size))
    # One product with the head: the windows' rows cost little beside reading its weights.
    hidden_NH = torch.cat((hidden_BXH[:, :width].reshape(-1, size), of_windows.reshape(-1, size)))
    parts.model.logits(hidden_NH, buf.logits_NV)
    next_BW = buf.logits_NV[batch * width :].argmax(1).view(batch, beside)
    assert state.window is not None
    state.window.index_copy_(0, buf.slots_B, torch.cat((next_BW, verified.base_B[:, None]), 1))


def _lines(state: SlotState, buf: StepBuffers) -> tuple[Tensor, Tensor]:
    """What each row reads, and where in it the window is: right behind the drafts that there are. What is left at the
    end of a line is read for nothing."""
    assert state.window is not None
    tokens_BT, beside = buf.tokens_BT, state.num_beside
    window_BW = state.window.index_select(0, buf.slots_B)[:, :beside]
    begin_B1 = (tokens_BT[:, 1:] >= 0).sum(1, keepdim=True) + 1
    column = torch.arange(tokens_BT.shape[1] + beside, device=tokens_BT.device)
    place_BX = column - begin_B1
    own_BX = torch.cat((tokens_BT, torch.zeros_like(window_BW)), 1)
    read_BX = window_BW.gather(1, place_BX.clamp(0, beside - 1))
    return torch.where(place_BX < 0, own_BX, read_BX), begin_B1 + column[:beside]


def write_windows(state: SlotState, slots: Tensor, windows: Tensor) -> None:
    """Say which windows slots begin with: int64 [n] and [n, W], pinned. A device function."""
    assert state.window is not None
    device = state.window.device
    slots, windows = slots.to(device, non_blocking=True), windows.to(device, non_blocking=True)
    state.window[:, : windows.shape[1]].index_copy_(0, slots, windows)
