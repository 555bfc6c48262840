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

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.models.base import PagedKV
from weft.models.mtp_module import MtpModules
from weft.ops.attention import Rows
from weft.ops.rows import take_rows
from weft.spec.base import DraftBuffers, Verified, row_positions
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

    def prefill(
        self,
        slot_1: Tensor,
        tokens_1N: Tensor,
        start: int,
        aux_1TF: Tensor,
        page_table_1P: Tensor,
        first: int = 0,
    ) -> None:
        width = aux_1TF.shape[1]
        hidden, tokens = self._with_kept(slot_1, aux_1TF, tokens_1N[:, 1:])
        self._keep(slot_1, hidden, tokens, torch.full_like(slot_1, width - 1))
        before = min(start - first, self.kept)
        width += before
        window, known = (x.narrow(1, self.kept - before, width) for x in (hidden, tokens))
        tokens_1X = torch.cat((known, known.new_zeros(1, self.kept)), 1)
        rows = Rows(page_table_1P, torch.full_like(slot_1, start - before), width)
        for module in range(self.num_drafts):
            behind = tokens_1X.narrow(1, module, width)
            window = self.modules.forward(behind, window, self.kv, rows, module)

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

    def _keep(self, slots: Tensor, hidden: Tensor, tokens: Tensor, count: Tensor) -> None:
        """Keep the last N of `_with_kept`'s entries up to the verified one at index `count`."""
        index = row_positions(count + 1, self.kept)
        self.tokens_SN.index_copy_(0, slots, tokens.gather(1, index))
        index = index[:, :, None].expand(-1, -1, hidden.shape[2])
        self.hidden_SNH.index_copy_(0, slots, hidden.gather(1, index))
