"""Multi-token prediction (MTP): one module that makes every draft, or a chain with one module for each draft.

Modules count from 0, drafts from 1. In a chain, module m makes draft m + 1. It reads the output of module m - 1, and
module 0 that of the target. Its KV entry at position i is computed from the hidden state that it reads at i and the
token at i + m + 1. Let L be the position of the last committed token. Each of the K drafts comes from entry L - 1 of
its module. So entry i of module m depends on a draft, and not on a committed token, if i + m + 1 > L.

Such entries must be rewritten when the tokens are committed. So every module runs over the same window. It begins K - 1
positions before the verified ones, and no entry at its first position depends on a draft. Each slot keeps the inputs of
those K - 1 positions: the target's hidden states and the tokens after them. Entries after the last valid one of the
window belong to rejected drafts. The next window overwrites them before they are read.

Shape suffixes: S slots and one for padding, N = K - 1 kept positions, W = N + T window entries, X = W + N tokens after
the window entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from weft.config import Speculation
from weft.errors import ModelError
from weft.models.base import PagedKV
from weft.models.config import ModelConfig
from weft.models.mtp_module import MtpModules
from weft.ops.attention import Rows
from weft.ops.rows import copy_rows_, embed, packed_places, take_rows
from weft.spec.base import Context, DraftBuffers, DrafterContext, Verified, row_positions
from weft.spec.recurrent import RecurrentDrafter, head_buffers


class Mtp(RecurrentDrafter):
    """Drafts with one MTP module, which reads its own output from the second draft on. Without a path, the module is in
    the subdirectory `directory` of the target's model directory, or in the target's checkpoint."""

    directory = "mtp"

    @classmethod
    def find(cls, speculation: Speculation, model_path: Path, target: ModelConfig) -> Path:
        """The directory of the modules. Raises `ModelError` if there is none."""
        path, default = Path(speculation.path or ""), model_path / cls.directory
        if speculation.path and not path.is_dir():
            raise ModelError(f"{path}: no such directory; give that of MTP modules to Speculation.mtp(path)")
        if speculation.path or default.is_dir():
            return path if speculation.path else default
        if not target.num_mtp_modules:
            raise ModelError(
                f"{model_path}: no MTP modules there; give their directory to Speculation.mtp(path), "
                "or put it into the model directory as mtp/"
            )
        return model_path

    @classmethod
    def load(cls, context: DrafterContext) -> Mtp | MtpChain:
        """Load the modules from `speculation.path`, from `mtp/` in the model directory, or from the target's
        checkpoint.

        Raises `ModelError` if there are no modules or they do not fit the target, and if a checkpoint with several
        modules has fewer of them than `num_draft_tokens`.
        """
        path = cls.find(context.speculation, context.model_path, context.target.config)
        modules = MtpModules.load(path, context.target)
        kv = modules.allocate_kv(context.num_pages, context.page_size, context.kv_dtype)
        count, drafts = len(modules.modules), context.speculation.max_draft_tokens
        if count == 1:
            return cls(modules, kv)
        if drafts > count:
            raise ModelError(
                f"{path}: the checkpoint has {count} modules, each for one draft; "
                f"num_draft_tokens is {drafts}, it must be at most {count}"
            )
        return MtpChain(modules, kv, drafts, context.num_slots)


@dataclass(frozen=True)
class ChainBuffers(DraftBuffers):
    """Buffers that pass data from one module of an iteration to the next, sized for the longest window.

    `start_B` is the first position of each row's window. `last_B` is the index of the window entry that makes the
    draft. `window_BWH` are the hidden states that the next module reads. `tokens_BX[b, x]` is the token at position
    `start_B[b] + 1 + x`, committed or drafted.
    """

    start_B: Tensor
    last_B: Tensor
    window_BWH: Tensor
    tokens_BX: Tensor


class MtpChain:
    """Drafts with the first K modules. Each has its own layer in the drafter's paged KV, which uses the target's page
    numbers."""

    d2t: Tensor | None = None

    def __init__(self, modules: MtpModules, kv: PagedKV, num_drafts: int, num_slots: int) -> None:
        self.modules = modules
        self.kv = kv
        self.num_drafts = num_drafts
        self.kept = kept = num_drafts - 1
        # The last K entries of a prefix depend on tokens after it. The window that computes them again begins up to K
        # positions earlier.
        self.reuse_margin = 2 * num_drafts
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

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        assert isinstance(buffers, ChainBuffers)
        if verified.context is not None:  # first, because it keeps the entries before a prompt's last token
            self._read(verified, verified.context)
        base_B, start_B, kept = verified.base_B, buffers.start_B, self.kept
        aux_BTF = verified.of_sampling(verified.aux)
        hidden_BWH, tokens_BW = self._with_kept(verified.slots_B, aux_BTF, verified.tokens_BT)
        self._keep(verified.slots_B, hidden_BWH, tokens_BW, verified.count_B)
        torch.clamp(base_B - kept, min=0, out=start_B)
        torch.sub(base_B + verified.count_B, start_B, out=buffers.last_B)
        # If the text is shorter than the window, the window begins at position 0, and the last entry is repeated to
        # fill the width.
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
        """Run the module that makes draft number `step`, and write the draft's logits."""
        verified_drafts = verified.tokens_BT.shape[1] - 1
        window_BWH = buffers.window_BWH.narrow(1, 0, self.kept + 1 + verified_drafts)
        window_BWH.copy_(self._run(verified, buffers, step - 1, window_BWH))
        take_rows(window_BWH.contiguous(), buffers.last_B, buffers.hidden_BH, verified.live_B)
        self.modules.logits(buffers.hidden_BH, buffers.logits_BD, verified.live_B, step - 1)
        # An iteration makes as many drafts as it verified, at most K. After the last draft the remaining modules run,
        # too, because a later iteration with more drafts needs their KV to be complete.
        if step >= verified_drafts:
            hidden_BWH = window_BWH
            for module in range(step, self.num_drafts):
                hidden_BWH = self._run(verified, buffers, module, hidden_BWH)

    def _run(self, verified: Verified, buffers: ChainBuffers, module: int, hidden_BWH: Tensor) -> Tensor:
        """Run one module over the whole window. Returns its hidden states [B, W, H]."""
        width, live_B = hidden_BWH.shape[1], verified.live_B
        live = None if live_B is None else live_B * width
        rows = Rows(verified.page_table_BP, buffers.start_B, width, live=live)
        return self.modules.forward(
            buffers.tokens_BX.narrow(1, module, width), hidden_BWH, self.kv, rows, module
        )

    def _read(self, verified: Verified, context: Context) -> None:
        """Run all modules over the parts of prompts, each part with up to N kept entries before it."""
        kept, starts, size = self.kept, context.starts, context.size
        count_R = starts.diff()
        before_R = (context.base_R - context.first_R).clamp(max=kept).where(count_R > 0, 0)
        begins = torch.zeros_like(starts)
        torch.cumsum(count_R + before_R, 0, out=begins[1:])
        live = begins[-1:]
        row_M, place_M = packed_places(begins, size + count_R.shape[0] * kept)
        entries, tokens = self._entries(verified, context)
        index_M = self._index(starts, row_M, place_M - before_R.index_select(0, row_M))
        index_M.clamp_(max=entries.shape[0] - 1)
        window = embed(entries, index_M, entries.dtype, live)  # gathers only the live rows
        known = tokens.index_select(0, index_M)
        rows = Rows(context.page_table_RP, context.base_R - before_R, size + kept, starts=begins, live=live)
        for module in range(self.num_drafts):
            # A part's last entries have no token at this distance yet. They read another part's tokens, and are
            # computed again before any other entry reads them.
            window = self.modules.forward(known.roll(-module), window, self.kv, rows, module)
        self._keep_last(context, entries, tokens)

    def _with_kept(self, slots: Tensor, aux: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Prepend the kept positions to `aux` [n, T, H] and `tokens` [n, T]. Returns hidden states [n, W, H] and tokens
        [n, W]."""
        hidden = torch.cat((self.hidden_SNH.index_select(0, slots), self.modules.combine(aux)), 1)
        return hidden, torch.cat((self.tokens_SN.index_select(0, slots), tokens.clamp(min=0)), 1)

    def _entries(self, verified: Verified, context: Context) -> tuple[Tensor, Tensor]:
        """Concatenate the kept entries of all parts, and then the entries of the iteration's tokens. Returns hidden
        states [R * kept + tokens, H], and the token after each."""
        kept_MH = self.hidden_SNH.index_select(0, context.slots_R).flatten(0, 1)
        kept_M = self.tokens_SN.index_select(0, context.slots_R).flatten()
        hidden = self.modules.combine(verified.aux)
        entries = hidden.new_empty(kept_MH.shape[0] + hidden.shape[0], hidden.shape[1])
        entries[: kept_MH.shape[0]] = kept_MH
        copy_rows_(entries[kept_MH.shape[0] :], hidden, verified.rows.live)
        return entries, torch.cat((kept_M, verified.after.clamp(min=0)))

    def _index(self, starts: Tensor, row: Tensor, offset: Tensor) -> Tensor:
        """The index into `_entries` of a part's entry at `offset` from its start. A negative offset means one of the
        kept entries."""
        num_kept = (starts.shape[0] - 1) * self.kept
        return torch.where(
            offset < 0, (row + 1) * self.kept + offset, num_kept + starts.index_select(0, row) + offset
        )

    def _keep_last(self, context: Context, entries: Tensor, tokens: Tensor) -> None:
        """Store the last `kept` entries of each part in its slot, for later parts and iterations."""
        offset_RN = row_positions(context.starts.diff() - self.kept, self.kept)
        row_RN = torch.arange(offset_RN.shape[0], device=offset_RN.device)[:, None].expand_as(offset_RN)
        index = self._index(context.starts, row_RN.flatten(), offset_RN.flatten())
        self.tokens_SN.index_copy_(0, context.slots_R, tokens.index_select(0, index).view(offset_RN.shape))
        hidden = entries.index_select(0, index).view(*offset_RN.shape, entries.shape[1])
        self.hidden_SNH.index_copy_(0, context.slots_R, hidden)

    def _keep(self, slots: Tensor, hidden: Tensor, tokens: Tensor, count: Tensor) -> None:
        """Store in each slot the last N entries of `_with_kept` before the last committed position. `count` is the
        number of accepted drafts."""
        index = row_positions(count + 1, self.kept)
        self.tokens_SN.index_copy_(0, slots, tokens.gather(1, index))
        index = index[:, :, None].expand(-1, -1, hidden.shape[2])
        self.hidden_SNH.index_copy_(0, slots, hidden.gather(1, index))
