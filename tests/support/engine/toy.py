"""A toy model of two tables, for decoding loops other than weft's. Its logits are a function of the last token and
the length.

Greedy decoding gives the same text with any drafts, in any batch and order, so every loop must return the oracle's
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from support.grammar.grammars import END, allowed, compiled, new_row, small_vocabulary
from weft.grammar import Guide
from weft.guided import CapturableGuidedDecoder, GuidedDecoder, GuidedRequest
from weft.runtime.interface import Runtime, Stream

VOCAB = small_vocabulary().vocab_size
DRAFT_VOCAB = 150
MAX_LENGTH = 40


@dataclass(frozen=True)
class Tables:
    """The target's logits [97, V], the drafter's logits [97, Vd], and the drafter's offsets d2t [Vd]."""

    target: Tensor
    draft: Tensor
    d2t: Tensor

    def to(self, device: torch.device) -> Tables:
        return Tables(self.target.to(device), self.draft.to(device), self.d2t.to(device))

    @classmethod
    def make(cls, seed: int = 0) -> Tables:
        generator = torch.Generator().manual_seed(seed)
        target = torch.randn(97, VOCAB, generator=generator)
        # End tokens are rare. The drafter's logits are the target's with noise, for every other token.
        target[:, END] -= 1.5
        ids = torch.arange(0, VOCAB, 2)
        draft = target[:, ids] + 0.5 * torch.randn(97, DRAFT_VOCAB, generator=generator)
        return cls(target, draft, ids - torch.arange(DRAFT_VOCAB))


def state_of(tokens: Tensor, lengths: Tensor) -> Tensor:
    """The row of the tables, for tokens and lengths of the same shape."""
    return (tokens.clamp(min=0) * 7 + lengths * 31) % 97


def oracle(tables: Tables, guide: Guide | None, first: int) -> list[int]:
    """Decode greedily one token at a time, with a Python matcher."""
    matcher = compiled(guide, native=False).matcher() if guide is not None else None
    text: list[int] = []
    last = first
    while len(text) < MAX_LENGTH and END not in text:
        logits = tables.target[int(state_of(torch.tensor(last), torch.tensor(len(text))))].clone()
        if matcher is not None:
            row = new_row()
            matcher.fill(row)
            blocked = torch.ones(VOCAB, dtype=torch.bool)
            blocked[allowed(row)] = False
            logits[blocked] = -torch.inf
        last = int(logits.argmax())
        if matcher is not None:
            assert matcher.accept(last)
        text.append(last)
    return text


def cut(text: Sequence[int]) -> list[int]:
    """Cut a text after its end token, or at `MAX_LENGTH` tokens."""
    kept = list(text)[:MAX_LENGTH]
    return kept[: kept.index(END) + 1] if END in kept else kept


class EagerLoop:
    """A loop over a `GuidedDecoder` with one request per slot. `order` is the order of the rows."""

    def __init__(
        self,
        runtime: Runtime,
        tables: Tables,
        guides: Sequence[Guide | None],
        order: Sequence[int],
        max_drafts: int,
        guided_drafts: bool,
    ) -> None:
        self.guides, self.order, self.guided_drafts = guides, list(order), guided_drafts
        self.device = runtime.device
        self.tables = tables.to(runtime.device)
        self.max_drafts = max_drafts
        self.decoder = GuidedDecoder(runtime, len(guides), max_drafts, VOCAB, [END])
        self.texts: list[list[int]] = [[] for _ in guides]
        self.drafts: list[list[int]] = [[] for _ in guides]
        self.iterations = 0

    def run(self, firsts: Sequence[int]) -> list[list[int]]:
        last = list(firsts)
        requests = [
            GuidedRequest(slot, compiled(guide).matcher() if guide else None, is_new=True)
            for slot, guide in enumerate(self.guides)
        ]
        while any(len(text) < MAX_LENGTH for text in self.texts):
            batch = [requests[slot] if not self.iterations else GuidedRequest(slot) for slot in self.order]
            self.decoder.add_batch(batch)
            accepted = self._verify(last)
            new = []
            for i, slot in enumerate(self.order):
                kept, token = accepted[i]
                self.texts[slot] += [*self.drafts[slot][:kept], token]
                last[slot] = token
                new.append(token)
            self.decoder.rollback_rejected_tokens([kept for kept, _ in accepted], new)
            self.drafts = [[] for _ in self.guides]
            self._draft(last)
            self.iterations += 1
        return [cut(text) for text in self.texts]

    def _verify(self, last: Sequence[int]) -> list[tuple[int, int]]:
        rows = []
        for slot in self.order:
            tokens = torch.tensor([last[slot], *self.drafts[slot]], device=self.device)
            lengths = len(self.texts[slot]) + torch.arange(len(tokens), device=self.device)
            rows.append(self.tables.target[state_of(tokens, lengths)])
        logits = torch.cat(rows)
        self.decoder.execute(logits)
        result, start = [], 0
        for slot in self.order:
            drafts = self.drafts[slot]
            tokens = logits[start : start + 1 + len(drafts)].argmax(-1).tolist()
            start += len(tokens)
            kept = 0
            while kept < len(drafts) and drafts[kept] == tokens[kept]:
                kept += 1
            result.append((kept, tokens[kept]))
        return result

    def _draft(self, last: Sequence[int]) -> None:
        for _ in range(self.max_drafts):
            tokens = torch.tensor([(self.drafts[slot] or [last[slot]])[-1] for slot in self.order])
            lengths = torch.tensor([len(self.texts[slot]) + len(self.drafts[slot]) for slot in self.order])
            logits = self.tables.draft[state_of(tokens, lengths).to(self.device)]
            if self.guided_drafts:
                self.decoder.execute_draft_batch(logits, self.tables.d2t)
            best = logits.max(-1)
            picked = torch.where(best.values == -torch.inf, -1, best.indices + self.tables.d2t[best.indices])
            for slot, token in zip(self.order, picked.tolist(), strict=True):
                self.drafts[slot].append(token)
            self.decoder.add_draft_batch(picked.tolist())


class CapturedLoop:
    """A loop over a `CapturableGuidedDecoder`. Tensors that several launched functions use are allocated here."""

    def __init__(
        self,
        runtime: Runtime,
        tables: Tables,
        guides: Sequence[Guide | None],
        order: Sequence[int],
        max_drafts: int,
        guided_drafts: bool,
    ) -> None:
        self.runtime, self.guides, self.order = runtime, guides, list(order)
        self.max_drafts, self.guided_drafts = max_drafts, guided_drafts
        device, slots = runtime.device, len(guides)
        self.tables = tables.to(device)
        self.stream: Stream = runtime.stream()
        # One row more than requests, so that the batch always has padding.
        self.decoder = CapturableGuidedDecoder(
            runtime, self.stream, slots, max_drafts, VOCAB, [END], batch_size=slots + 1
        )
        batch, width = slots + 1, max_drafts + 1

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self.last, self.length = integers(slots + 1), integers(slots + 1)
        self.texts = torch.full((slots + 1, MAX_LENGTH + 2 * width), -1, device=device)
        self.logits = torch.zeros(batch, width, VOCAB, device=device)
        self.draft_logits = torch.zeros(batch, DRAFT_VOCAB, device=device)
        self.accepted, self.new, self.picked = integers(batch), integers(batch), integers(batch)
        self.proposed_drafts, self.accepted_drafts = integers(slots + 1), integers(slots + 1)
        runtime.publish()

    def run(self, firsts: Sequence[int], capture: bool = True) -> list[list[int]]:
        self.stream.launch(self.last[:-1].copy_, torch.tensor(list(firsts)))
        requests = [
            GuidedRequest(slot, compiled(guide).matcher() if guide else None, is_new=True)
            for slot, guide in enumerate(self.guides)
        ]
        graph = None
        if capture:
            # Run a first iteration eagerly, with padding only, so that the capture neither loads nor allocates.
            self.decoder.add_batch([])
            self.step()
            self.stream.synchronize()
            with self.runtime.capture(self.stream) as graph:
                self.step()
        for iteration in range(MAX_LENGTH):
            self.decoder.add_batch(
                [requests[slot] if not iteration else GuidedRequest(slot) for slot in self.order]
            )
            if graph is None:
                self.step()
            else:
                graph.replay()
        self.stream.synchronize()
        if graph is not None:
            graph.close()
        self.decoder.close()
        return [cut(self.texts[slot].tolist()) for slot in range(len(self.guides))]

    def told(self, firsts: Sequence[int], capture: bool = True) -> tuple[list[list[int]], list[list[int]]]:
        """The texts, and for each the number of proposed and of accepted drafts over all iterations."""
        texts = self.run(firsts, capture)
        return texts, [self.proposed_drafts[:-1].tolist(), self.accepted_drafts[:-1].tolist()]

    def step(self) -> None:
        decoder, stream = self.decoder, self.stream
        with decoder.step():
            stream.launch(self._forward)
            decoder.execute(self.logits)
            stream.launch(self._verify)
            decoder.rollback_rejected_tokens(self.accepted, self.new)
            for j in range(self.max_drafts):
                stream.launch(self._draft_forward, j)
                if self.guided_drafts:
                    decoder.execute_draft_batch(self.draft_logits, self.tables.d2t)
                stream.launch(self._pick)
                decoder.add_draft_batch(self.picked)

    def _forward(self) -> None:
        slots, drafts = self.decoder.slots, self.decoder.drafts
        tokens = torch.cat([self.last[slots][:, None], drafts[:, slots].T], dim=1)
        lengths = self.length[slots][:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        self.logits.copy_(self.tables.target[state_of(tokens, lengths)])

    def _verify(self) -> None:
        slots = self.decoder.slots
        tokens = self.logits.argmax(-1)
        drafts = self.decoder.drafts[:, slots].T
        accepted = ((tokens[:, :-1] == drafts) & (drafts >= 0)).long().cumprod(1).sum(1)
        self.accepted.copy_(accepted)
        self.accepted_drafts[slots] += accepted
        self.proposed_drafts[slots] += (drafts >= 0).sum(1)
        self.new.copy_(tokens.gather(1, accepted[:, None])[:, 0])
        room = self.texts.shape[1] - tokens.shape[1]
        start = self.length[slots].clamp(max=room)
        self.texts[slots[:, None], start[:, None] + torch.arange(tokens.shape[1], device=tokens.device)] = (
            tokens
        )
        self.last[slots] = self.new
        self.length[slots] = start + accepted + 1

    def _draft_forward(self, j: int) -> None:
        slots = self.decoder.slots
        tokens = self.last[slots] if j == 0 else self.picked
        self.draft_logits.copy_(self.tables.draft[state_of(tokens, self.length[slots] + j)])

    def _pick(self) -> None:
        best = self.draft_logits.max(-1)
        self.picked.copy_(
            torch.where(best.values == -torch.inf, -1, best.indices + self.tables.d2t[best.indices])
        )
