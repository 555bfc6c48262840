"""Runs a drafter as the engine does, over random texts: prompts in chunks, then iterations that accept a random
number of drafts. The logits of every draft are compared with an oracle's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weft.models.base import PagedKV
from weft.ops.attention import Rows
from weft.spec.base import PromptParts, Span, Verified

SLOTS, PAGE, PAGES = 4, 4, 14
LENGTH = PAGE * PAGES - 18

Oracle = Callable[[Tensor, Tensor, list[int]], Tensor]
"""(known tokens [L + 1], hidden states [L, F] of all tokens but the last, drafts so far) -> logits of the next draft
[D]."""


class Drafting:
    """Slots with a random text each: `tokens` [SLOTS, LENGTH], and random hidden states in place of the target's."""

    def __init__(self, drafter: Any, kv: PagedKV, oracle: Oracle, vocab: int, width: int, seed: int) -> None:
        self.drafter, self.oracle, self.vocab = drafter, oracle, vocab
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, vocab, (SLOTS, LENGTH), generator=generator)
        self.aux = torch.randn(SLOTS, LENGTH, width, generator=generator)
        pages = torch.randperm(SLOTS * PAGES, generator=generator).int() + 1
        self.page_table = torch.cat((pages.view(SLOTS, PAGES), torch.zeros(1, PAGES, dtype=torch.int32)))
        self.base = [0] * SLOTS
        for memory in (kv.k, kv.v):
            memory[:, 1:].fill_(float("nan"))  # reading memory that was never written gives NaN
        self.compared = 0

    def prefill(self, slots: list[int], lengths: list[int]) -> None:
        """Prefill prompts in chunks of random lengths. Random subsets of the slots share a forward."""
        position = dict.fromkeys(slots, 0)
        wanted = dict(zip(slots, lengths, strict=True))
        while unread := [slot for slot in slots if position[slot] < wanted[slot]]:
            together = self.rng.sample(unread, self.rng.randint(1, len(unread)))
            stops = [min(wanted[slot], position[slot] + self.rng.randint(1, 9)) for slot in together]
            spans = [Span(position[slot], stop, 0) for slot, stop in zip(together, stops, strict=True)]
            self.drafter.prefill(self.parts(together, spans))
            position |= dict(zip(together, stops, strict=True))
        self.base = [wanted.get(slot, base) for slot, base in enumerate(self.base)]

    def parts(self, slots: list[int], spans: list[Span]) -> PromptParts:
        """Chunks of several prompts for one forward."""
        own = list(zip(slots, spans, strict=True))
        starts = torch.tensor([0, *(span.stop - span.start for span in spans)]).cumsum(0)
        rows = Rows(
            self.page_table[slots],
            torch.tensor([span.start for span in spans]),
            max(span.stop - span.start for span in spans),
            starts=starts if len(spans) > 1 else None,
        )
        return PromptParts(
            torch.tensor(slots),
            torch.cat([self.tokens[slot, span.start : span.stop] for slot, span in own]),
            torch.cat([self.tokens[slot, span.start + 1 : span.stop + 1] for slot, span in own]),
            torch.cat([self.aux[slot, span.start : span.stop] for slot, span in own]),
            rows,
            starts,
            torch.tensor([span.first for span in spans]),
            tuple(spans),
        )

    def iterate(self, slots: list[int], width: int, num_drafts: int, buffers: Any) -> None:
        """Run one iteration over `slots` that verified `width` positions, and compare the logits of every draft. The
        last row is padding."""
        verified, known = self.verify(slots, width)
        drafts: list[list[int]] = [[] for _ in slots]
        self.drafter.draft_first(verified, buffers)
        for step in range(1, num_drafts + 1):
            if step > 1:
                self.drafter.draft_next(verified, buffers, step)
            for row, slot in enumerate(slots):
                length = known[row]
                wanted = self.oracle(
                    self.tokens[slot, : length + 1], self.aux[slot, :length], [max(d, 0) for d in drafts[row]]
                )
                torch.testing.assert_close(buffers.logits_BD[row], wanted, atol=2e-4, rtol=2e-4)
                self.compared += 1
                drafts[row].append(self.rng.randrange(-1, self.vocab))
                buffers.token_B[row] = drafts[row][-1]

    def verify(self, slots: list[int], width: int) -> tuple[Verified, list[int]]:
        """Make the result of an iteration that verified `width` positions and accepted a random number of them. Also
        returns the new known lengths."""
        rows = [*slots, SLOTS]
        count, base = [self.rng.randrange(width) for _ in slots], [self.base[s] for s in slots]
        tokens = torch.randint(-1, self.vocab, (len(rows), width))
        aux = torch.randn(len(rows), width, self.aux.shape[2])
        for row, (slot, start, accepted) in enumerate(zip(slots, base, count, strict=True)):
            tokens[row, : accepted + 1] = self.tokens[slot, start + 1 : start + accepted + 2]
            aux[row, : accepted + 1] = self.aux[slot, start : start + accepted + 1]
            self.base[slot] = start + accepted + 1
        verified = Verified(
            slots_B=torch.tensor(rows),
            tokens_BT=tokens,
            count_B=torch.tensor([*count, 0]),
            base_B=torch.tensor([*base, 0]),
            aux_BTF=aux,
            page_table_BP=self.page_table[rows],
        )
        return verified, [self.base[s] for s in slots]

    def run(self, max_drafts: int, num_drafts: list[int], wider: int = 0) -> None:
        """Prefill prompts of one token and more, then run iterations over random slots until their texts end.
        Halfway, one slot starts a new text.

        An iteration makes one of `num_drafts` drafts. It verifies at most that many, plus `wider`.
        """
        buffers: dict[tuple[int, int], Any] = {}
        with torch.inference_mode():
            self.prefill([*range(SLOTS)], [1, 2, 13, 6])
            for turn in range(16):
                if turn == 8:
                    self.tokens[1], self.aux[1] = self.tokens[1].flip(0), self.aux[1].flip(0)
                    self.prefill([1], [3])
                live = [s for s in range(SLOTS) if self.base[s] + max_drafts + 2 < LENGTH]
                if not live:
                    continue
                slots = self.rng.sample(live, self.rng.randint(1, len(live)))
                drafted = self.rng.choice(num_drafts)
                key = (len(slots), drafted)
                if key not in buffers:
                    buffers[key] = self.drafter.draft_buffers(len(slots) + 1)
                width = min(self.rng.randint(1, drafted + 1) + wider, max_drafts + 1)
                self.iterate(slots, width, drafted, buffers[key])
