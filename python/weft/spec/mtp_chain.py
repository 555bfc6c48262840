"""Multi-token prediction with a module for each draft: module k reads module k-1's output and makes draft k.

Module k's entry at position i holds the (k-1)th hidden state at i and the token at i + k. With the last token known
at position L, all K drafts come from entry L - 1 of the K modules; entry i of module k holds a drafted token, and
not yet the truth, where i + k > L.

So those entries are made again once the truth is known. Every module runs over one window, which begins K - 1
positions before what was verified: at an entry that reads no draft in any module. What the window reads of positions
before the verified ones, the target's hidden states and the tokens after them, is kept by slot. After the window's
last true entry are entries of refused drafts; the next window overwrites them before they are read.

Suffixes: S slots and one that only pads, N = K - 1 positions kept, W = N + T entries of a window, X = W + N tokens
after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.models.base import PagedKV
from weft.models.mtp_module import MtpModules
from weft.ops.attention import Rows
from weft.ops.rows import take_rows
from weft.spec.base import DraftBuffers, PromptParts, Verified, row_positions
from weft.spec.recurrent import head_buffers


@dataclass(frozen=True)
class ChainBuffers(DraftBuffers):
    """What the modules of one iteration hand on, in the shape of the longest window.

    `start_B`: the first position of each row's window; `last_B`: the index of the entry that drafts; `window_BWH`:
    the hidden states that the next module reads; `tokens_BX[b, x]`: the token at position `start_B[b] + 1 + x`, known
    or drafted.
    """

    start_B: Tensor
    last_B: Tensor
    window_BWH: Tensor
    tokens_BX: Tensor


class MtpChain:
    """Drafter of the first K modules over a paged KV with a layer for each, with the target's page numbers."""

    d2t: Tensor | None = None

    def __init__(self, modules: MtpModules, kv: PagedKV, num_drafts: int, num_slots: int) -> None:
        self.modules = modules
        self.kv = kv
        self.num_drafts = num_drafts
        self.kept = kept = num_drafts - 1
        self.reuse_margin = (
            2 * num_drafts
        )  # K tokens after an entry, and the window that the next iteration reads
        self.aux_layers = modules.aux_layers
        sizes = (num_slots + 1, kept)
        hidden = modules.hidden_size
        self.hidden_SNH = torch.zeros(*sizes, hidden, dtype=modules.dtype, device=modules.device)
        self.tokens_SN = torch.zeros(sizes, dtype=torch.int64, device=modules.device)

    def draft_buffers(self, batch: int) -> ChainBuffers:
        window = self.kept + 1 + self.num_drafts
        common = head_buffers(self.modules, batch)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=self.modules.device)

        return ChainBuffers(
            common.logits_BD,
            common.token_B,
            common.hidden_BH,
            start_B=integers(batch),
            last_B=integers(batch),
            window_BWH=common.hidden_BH.new_zeros(batch, window, self.modules.hidden_size),
            tokens_BX=integers(batch, window + self.kept),
        )

    def prefill(self, parts: PromptParts) -> None:
        kept, starts = self.kept, parts.starts
        before_B = (parts.rows.base - parts.first_B).clamp(max=kept)  # entries of a window before its part
        widths = [min(span.start - span.first, kept) + span.stop - span.start for span in parts.spans]
        begins = torch.zeros_like(starts)
        torch.cumsum(starts.diff() + before_B, 0, out=begins[1:])
        entries, tokens = self._entries(parts)
        row_M, place_M = _places(begins, sum(widths))
        index_M = self._index(starts, row_M, place_M - before_B.index_select(0, row_M))
        window, known = entries.index_select(0, index_M), tokens.index_select(0, index_M)
        rows = replace(
            parts.rows,
            base=parts.rows.base - before_B,
            width=max(widths),
            starts=begins if len(widths) > 1 else None,
        )
        left_M = begins[1:].index_select(0, row_M) - begins.index_select(0, row_M) - place_M
        for module in range(self.num_drafts):
            behind = torch.where(left_M > module, known.roll(-module), 0)
            window = self.modules.forward(behind, window, self.kv, rows, module)
        self._keep_last(parts, entries, tokens)

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        assert isinstance(buffers, ChainBuffers)
        base_B, start_B, kept = verified.base_B, buffers.start_B, self.kept
        hidden_BWH, tokens_BW = self._with_kept(verified.slots_B, verified.aux_BTF, verified.tokens_BT)
        self._keep(verified.slots_B, hidden_BWH, tokens_BW, verified.count_B)
        torch.clamp(base_B - kept, min=0, out=start_B)
        torch.sub(base_B + verified.count_B, start_B, out=buffers.last_B)
        # A row nearer to the beginning than the window is long begins at 0; after its end, entries repeat.
        width = tokens_BW.shape[1]
        index_BX = row_positions(start_B - base_B + kept, width + kept).clamp(max=width - 1)
        buffers.tokens_BX.narrow(1, 0, width + kept).copy_(tokens_BW.gather(1, index_BX))
        index_BWH = index_BX.narrow(1, 0, width)[:, :, None].expand(hidden_BWH.shape)
        buffers.window_BWH.narrow(1, 0, width).copy_(hidden_BWH.gather(1, index_BWH))
        self._draft(verified, buffers, 1)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        assert isinstance(buffers, ChainBuffers)
        place_B1 = (buffers.last_B + (step - 1))[:, None]
        buffers.tokens_BX.scatter_(1, place_B1, buffers.token_B.clamp(min=0)[:, None])
        self._draft(verified, buffers, step)

    def _draft(self, verified: Verified, buffers: ChainBuffers, step: int) -> None:
        """Run module `step` and write its logits; after an iteration's last draft, run the modules after it, too.

        An iteration makes as many drafts as it verified. Where that is less than K, what further modules read of the
        text is written all the same, so that a later iteration of more drafts finds their KV whole.
        """
        verified_drafts = verified.tokens_BT.shape[1] - 1
        window_BWH = buffers.window_BWH.narrow(1, 0, self.kept + 1 + verified_drafts)
        window_BWH.copy_(self._run(verified, buffers, step - 1, window_BWH))
        take_rows(window_BWH.contiguous(), buffers.last_B, buffers.hidden_BH)
        self.modules.logits(buffers.hidden_BH, buffers.logits_BD)
        if step >= verified_drafts:
            hidden_BWH = window_BWH
            for module in range(step, self.num_drafts):
                hidden_BWH = self._run(verified, buffers, module, hidden_BWH)

    def _run(self, verified: Verified, buffers: ChainBuffers, module: int, hidden_BWH: Tensor) -> Tensor:
        """One module, numbered from 0, over the whole window."""
        width = hidden_BWH.shape[1]
        rows = Rows(verified.page_table_BP, buffers.start_B, width)
        return self.modules.forward(
            buffers.tokens_BX.narrow(1, module, width), hidden_BWH, self.kv, rows, module
        )

    def _with_kept(self, slots: Tensor, aux: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states from N positions before `aux` [n, T, H], and the tokens after them."""
        hidden = torch.cat((self.hidden_SNH.index_select(0, slots), self.modules.combine(aux)), 1)
        return hidden, torch.cat((self.tokens_SN.index_select(0, slots), tokens.clamp(min=0)), 1)

    def _entries(self, parts: PromptParts) -> tuple[Tensor, Tensor]:
        """Hidden states [B * kept + N, H] of what is kept of each row, then of the parts, and the tokens after them."""
        kept_MH = self.hidden_SNH.index_select(0, parts.slots_B).flatten(0, 1)
        kept_M = self.tokens_SN.index_select(0, parts.slots_B).flatten()
        hidden = torch.cat((kept_MH, self.modules.combine(parts.aux_NF)))
        return hidden, torch.cat((kept_M, parts.after_N.clamp(min=0)))

    def _index(self, starts: Tensor, row: Tensor, offset: Tensor) -> Tensor:
        """Where `_entries` has the entry at `offset` from the beginning of a row's part: before it, what is kept."""
        num_kept = (starts.shape[0] - 1) * self.kept
        return torch.where(
            offset < 0, (row + 1) * self.kept + offset, num_kept + starts.index_select(0, row) + offset
        )

    def _keep_last(self, parts: PromptParts, entries: Tensor, tokens: Tensor) -> None:
        """Keep the last entries of each part."""
        offset_BN = row_positions(parts.starts.diff() - self.kept, self.kept)
        row_BN = torch.arange(offset_BN.shape[0], device=offset_BN.device)[:, None].expand_as(offset_BN)
        index = self._index(parts.starts, row_BN.flatten(), offset_BN.flatten())
        self.tokens_SN.index_copy_(0, parts.slots_B, tokens.index_select(0, index).view(offset_BN.shape))
        hidden = entries.index_select(0, index).view(*offset_BN.shape, entries.shape[1])
        self.hidden_SNH.index_copy_(0, parts.slots_B, hidden)

    def _keep(self, slots: Tensor, hidden: Tensor, tokens: Tensor, count: Tensor) -> None:
        """Keep the last N of `_with_kept`'s entries up to the verified one at index `count`."""
        index = row_positions(count + 1, self.kept)
        self.tokens_SN.index_copy_(0, slots, tokens.gather(1, index))
        index = index[:, :, None].expand(-1, -1, hidden.shape[2])
        self.hidden_SNH.index_copy_(0, slots, hidden.gather(1, index))


def _places(starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of `count` entries, of row b those from `starts[b]` to `starts[b + 1]`: the row of each, and its place there."""
    entry = torch.arange(count, device=starts.device)
    row = torch.searchsorted(starts[1:], entry, right=True)
    return row, entry - starts.index_select(0, row)
