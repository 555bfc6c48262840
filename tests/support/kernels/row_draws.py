"""The parameters of random draws from rows of logits, the draws of plain torch, and a check of tokens against them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from support.kernels.sampling import sample_reference, sums_reference
from support.kernels.truncation import truncation_floor_reference
from weft.ops.slots import SlotParams

ROUNDING = 1e-5
"""If two sums are closer than this, either may win."""


def top_p_after(top_p: float, params: SlotParams, slot: int, tokens: list[int]) -> float:
    """Return a slot's top-p after these tokens, in which -1 is no token."""
    decay, least, first = params.top_p_decay[slot], params.top_p_min[slot], params.top_p_start[slot]
    if decay == 1 and least <= 0:
        return top_p
    now = torch.tensor(top_p)
    for token in tokens:
        if token >= 0:
            now = first if token == params.top_p_reset_id[slot] else torch.maximum(now * decay, least)
    return float(now)


@dataclass(frozen=True)
class RowDraws:
    """The sampling parameters of n rows, [n] each."""

    temperature: Tensor
    seed: Tensor
    position: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @staticmethod
    def of(
        params: SlotParams,
        slot: Tensor,
        position: Tensor,
        temperatures: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> RowDraws:
        """Take the parameters of rows of these slots, at these positions, after `seen` drafts. A slot out of bounds
        counts as slot 0."""
        slot = slot.where((slot >= 0) & (slot < len(params.ends)), 0)
        temperature = params.temperature[slot]
        if temperatures is not None:
            wanted = temperatures.view(len(params.ends), -1)[slot, 0 if seen is None else seen]
            temperature = wanted.where(wanted >= 0, temperature)
        asked = params.top_k[slot], params.top_p[slot], params.min_p[slot]
        return RowDraws(temperature, params.seed[slot], position, *asked)

    def after(self, params: SlotParams, slot: Tensor, drafts: Tensor, seen: Tensor) -> RowDraws:
        """Return the parameters after the first seen[i] of the tokens drafts[i], in which -1 is no token. Only top-p
        may change."""
        top_p = self.top_p.clone()
        for i, s in enumerate(slot.where((slot >= 0) & (slot < len(params.ends)), 0).tolist()):
            top_p[i] = top_p_after(float(top_p[i]), params, s, drafts[i, : seen[i]].tolist())
        return replace(self, top_p=top_p)

    def tokens(self, logits: Tensor, d2t: Tensor | None = None) -> Tensor:
        """Return the tokens that plain torch draws, [n] int64."""
        floor = truncation_floor_reference(logits, self.temperature, self.top_k, self.top_p, self.min_p)
        return sample_reference(logits, self.temperature, self.seed, self.position, d2t, floor)

    def check(self, token: Tensor, logits: Tensor, d2t: Tensor | None = None) -> None:
        """Check that plain torch draws `token`. If two sums or a truncation limit are within rounding, both tokens
        are accepted."""
        self.check_but_for_rounding(token, self.tokens(logits, d2t), logits, d2t)

    def check_but_for_rounding(
        self, token: Tensor, expected: Tensor, logits: Tensor, d2t: Tensor | None = None
    ) -> None:
        """Check that `token` is `expected`, or within rounding of it."""
        for i in (token != expected).nonzero().flatten().tolist():
            one = RowDraws(*(each[i : i + 1] for each in vars(self).values()))
            assert one._might_be(int(token[i]), logits[i : i + 1], d2t), (i, token[i], expected[i])

    def _might_be(self, token: int, row: Tensor, d2t: Tensor | None) -> bool:
        tokens_V = torch.arange(row.shape[1]) + (0 if d2t is None else d2t)
        for sign in (0, 1, -1):
            near = self.top_k, self.top_p + sign * 2e-6, self.min_p * (1 - sign * 2e-5)
            floor = truncation_floor_reference(row, self.temperature, *near)
            sums_V = sums_reference(row, self.temperature, self.seed, self.position, d2t, floor)[0]
            if (sums_V[tokens_V == token] > sums_V.max() - ROUNDING).any():
                return True
        return False
