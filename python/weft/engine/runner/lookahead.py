"""The target's forward with a window of tokens beside each text, for lookahead decoding (`spec/proposers.py`).

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
    assert state.window is not None and buf.lines is not None
    num_B = (buf.tokens_BT >= 0).sum(1)
    window_BW = state.window.index_select(0, buf.slots_B)[:, : state.num_beside]
    line_BX = torch.cat((buf.tokens_BT, window_BW), 1).gather(1, buf.lines.read.index_select(0, num_B))
    return line_BX, buf.lines.places.index_select(0, num_B)


def write_windows(state: SlotState, slots: Tensor, windows: Tensor) -> None:
    """Say which windows slots begin with: int64 [n] and [n, W], pinned. A device function."""
    assert state.window is not None
    device = state.window.device
    slots, windows = slots.to(device, non_blocking=True), windows.to(device, non_blocking=True)
    state.window[:, : windows.shape[1]].index_copy_(0, slots, windows)
