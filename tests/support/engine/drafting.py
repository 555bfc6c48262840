"""Runs a drafter as the engine does, over random texts: iterations decode, and read parts of prompts beside that. A
random number of drafts is accepted. The logits of every draft are compared with an oracle's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from weft.engine.device.state import StepBuffers
from weft.engine.runner.in_flight import PromptInputs
from weft.engine.runner.prompts import PromptPart, write_inputs
from weft.models.base import PagedKV
from weft.spec.base import Verified

SLOTS, PAGE, PAGES = 4, 4, 14
LENGTH = PAGE * PAGES - 18
MAX_PARTS, MAX_PART, MAX_CONTEXT = 3, 9, 24

Oracle = Callable[[Tensor, Tensor, list[int]], Tensor]
"""(known tokens [L + 1], hidden states [L, F] of all tokens but the last, drafts so far) -> logits of the next draft
[D]."""


class Drafting:
    """Slots with a random text each: `tokens` [SLOTS, LENGTH], and random hidden states in place of the target's.

    `base[slot]` is the position of the next token that an iteration reads. `last[slot]` is the position of the last
    token of the prompt: before it the slot reads context, and from it on it decodes. `compared` counts the drafts whose
    logits were compared, and `hits` the positions that came from another slot's pages.
    """

    def __init__(self, drafter: Any, kv: PagedKV, oracle: Oracle, vocab: int, width: int, seed: int) -> None:
        self.drafter, self.kv, self.oracle, self.vocab = drafter, kv, oracle, vocab
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, vocab, (SLOTS, LENGTH), generator=generator)
        self.aux = torch.randn(SLOTS, LENGTH, width, generator=generator)
        pages = torch.randperm(SLOTS * PAGES, generator=generator).int() + 1
        self.pages = torch.cat((pages.view(SLOTS, PAGES), torch.zeros(1, PAGES, dtype=torch.int32)))
        self.page_table = self.pages.clone()
        self.base, self.last, self.first = [0] * SLOTS, [0] * SLOTS, [0] * SLOTS
        self.is_new = [True] * SLOTS  # no token of it was decoded yet
        kv.groups[0].fill_(float("nan"))  # reading memory that was never written gives NaN
        self.compared = self.hits = 0
        self._buffers: dict[tuple[int, int, bool], StepBuffers] = {}

    def begin(self, slot: int, length: int) -> None:
        """Begin a prompt of `length` tokens."""
        self.page_table[slot] = self.pages[slot]
        self.base[slot], self.last[slot], self.first[slot] = 0, length - 1, 0
        self.is_new[slot] = True

    def share(self, slot: int, other: int, common: int, length: int) -> None:
        """Begin a prompt of `length` tokens, the first `common` of which are those of a slot `other`. It also begins
        with that slot's pages, as far as the drafter's margin allows."""
        self.begin(slot, length)
        for text in (self.tokens, self.aux):
            text[slot, :common] = text[other, :common]
        pages = max(min(common, length - 1, self.base[other]) - self.drafter.reuse_margin, 0) // PAGE
        self.page_table[slot, :pages] = self.page_table[other, :pages]
        self.base[slot] = self.first[slot] = pages * PAGE
        self.hits += pages * PAGE

    def read(self, slots: Sequence[int]) -> list[PromptPart]:
        """Take a part of random length from the prompt of each slot. The iteration must read them."""
        parts: list[PromptPart] = []
        room = MAX_CONTEXT
        for slot in slots:
            start = self.base[slot]
            stop = min(start + self.rng.randint(1, MAX_PART), start + room, self.last[slot])
            if stop > start:
                sampling: Any = None
                prompt = PromptInputs((slot,), self.tokens[slot].numpy(), (), sampling, self.first[slot])
                parts.append(PromptPart(prompt, start, stop))
                self.base[slot], room = stop, room - (stop - start)
        return parts

    def iterate(
        self, slots: list[int], width: int, num_drafts: int, parts: list[PromptPart] | None = None
    ) -> None:
        """Run one iteration over `slots` that verifies `width` positions, and compare the logits of every draft. With
        `parts` it also reads parts of prompts, maybe none. The other rows are padding."""
        verified, buffers = self.verify(slots, width, parts)
        drafts: list[list[int]] = [[] for _ in slots]
        self.drafter.draft_first(verified, buffers)
        for step in range(1, num_drafts + 1):
            if step > 1:
                self.drafter.draft_next(verified, buffers, step)
            for row, slot in enumerate(slots):
                length = self.base[slot]
                wanted = self.oracle(
                    self.tokens[slot, : length + 1], self.aux[slot, :length], [max(d, 0) for d in drafts[row]]
                )
                torch.testing.assert_close(buffers.logits_BD[row], wanted, atol=2e-4, rtol=2e-4)
                self.compared += 1
                drafts[row].append(self.rng.randrange(-1, self.vocab))
                buffers.token_B[row] = drafts[row][-1]

    def verify(
        self, slots: list[int], width: int, parts: list[PromptPart] | None = None
    ) -> tuple[Verified, Any]:
        """Make the result of an iteration that verified `width` positions and accepted a random number of them. Also
        returns the drafter's buffers."""
        buffers = self.buffers(
            SLOTS if parts is not None else min(len(slots) + 1, SLOTS), width, parts is not None
        )
        verified, inputs = buffers.verified, buffers.inputs
        rows = [*slots, *[SLOTS] * (buffers.slots_B.shape[0] - len(slots))]
        verified.aux.fill_(float("nan"))
        aux = verified.aux.flatten(0, -2)
        if inputs is not None:
            on_host = inputs.on_host(inputs.sizes)
            write_inputs(on_host, slots, parts or [], width, SLOTS)
            inputs.data.copy_(torch.from_numpy(on_host.data))
            for row, part in enumerate(parts or [], len(rows)):
                first, stop = inputs.starts[row : row + 2].tolist()
                aux[first:stop] = self.aux[part.prompt.slot, part.start : part.stop]
        else:
            buffers.slots_B.copy_(torch.tensor(rows))
        verified.rows.page_table.copy_(self.page_table[buffers.slots])
        for row, slot in enumerate(slots):
            start, accepted = self.base[slot], 0 if self.is_new[slot] else self.rng.randrange(width)
            end, known = start + accepted + 1, slice(0, accepted + 1)
            for to, text in ((buffers.tokens_BT, self.tokens), (verified.tokens_BT, self.tokens[:, 1:])):
                to[row] = torch.randint(-1, self.vocab, (width,))
                to[row, known] = text[slot, start:end]
            of_row = aux[row * width : (row + 1) * width]
            of_row.normal_()
            of_row[known] = self.aux[slot, start:end]
            verified.base_B[row], verified.count_B[row] = start, accepted
            self.base[slot], self.is_new[slot] = end, False
        return verified, buffers.draft

    def buffers(self, batch: int, width: int, reads: bool) -> StepBuffers:
        """The engine's buffers for iterations of `batch` rows. If it also `reads` prompts, they are larger."""
        key = (batch, width, reads)
        if key not in self._buffers:
            state: Any = SimpleNamespace(
                length=torch.zeros(SLOTS + 1),
                num_beside=0,
                page_table=self.page_table,
                windowed_table=None,
                dummy=SLOTS,
            )
            if reads:
                parts: Any = SimpleNamespace(state=state, kv=SimpleNamespace(states=None))
                made = self.buffers(batch, width, False).with_context(MAX_CONTEXT, MAX_PARTS, parts)
            else:
                size = self.aux.shape[2] // max(len(self.drafter.aux_layers), 1)
                config = SimpleNamespace(vocab_size=self.vocab, hidden_size=size, dtype=torch.float32)
                model: Any = SimpleNamespace(config=config)
                slots = torch.zeros(batch, dtype=torch.int64)
                made = StepBuffers.allocate(slots, width, model, state, self.drafter)
            self._buffers[key] = made
        return self._buffers[key]

    def run(self, max_drafts: int, num_drafts: list[int], wider: int = 0) -> None:
        """Begin prompts of one token and more, then run iterations over random slots until their texts end. On the way
        one slot begins a new text, and another begins a text whose first tokens are those of a third.

        An iteration makes one of `num_drafts` drafts. It verifies as many, plus `wider`.
        """
        for slot, length in enumerate([1, 3, 20, 7]):
            self.begin(slot, length)
        with torch.inference_mode():
            for turn in range(40):
                if turn == 8:
                    self.tokens[1], self.aux[1] = self.tokens[1].flip(0), self.aux[1].flip(0)
                    self.begin(1, 4)
                if turn > 8 and not self.hits and not self.is_new[2]:
                    common = min(self.base[2] + 1, LENGTH - max_drafts - 6)
                    self.share(3, 2, common, common + self.rng.randint(0, 3))
                self._turn(max_drafts, self.rng.choice(num_drafts), wider)
        assert self.kv.groups[0][:, 0].isnan().all(), "padding rows wrote to page 0"

    def _turn(self, max_drafts: int, num_drafts: int, wider: int) -> None:
        rng = self.rng
        reading = [slot for slot in range(SLOTS) if self.base[slot] < self.last[slot]]
        parts = self.read(rng.sample(reading, rng.randint(0, min(len(reading), MAX_PARTS))))
        decoding = [
            slot
            for slot in range(SLOTS)
            if self.base[slot] >= self.last[slot] and self.base[slot] + max_drafts + 2 < LENGTH
        ]
        slots = rng.sample(decoding, rng.randint(0, len(decoding)))
        if not slots:
            if parts:
                self.iterate([], 1, 0, parts)
            return
        width = min(num_drafts + wider, max_drafts) + 1
        # Like the engine, read a prompt that has no context in an iteration that reads prompts.
        reads = bool(parts) or any(self.is_new[s] and self.last[s] == self.first[s] for s in slots)
        self.iterate(slots, width, num_drafts, parts if reads or rng.random() < 0.3 else None)
