"""Tests GuidedState's protocol of commit and extend against an oracle that replays every text from its start.

Each iteration has random slots in a random order, with and without a guide. Drafts are legal, refused, missing or
end tokens. The state takes them while they are drafted, or all at once later. Every mask that verification would
read must be the oracle's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch

from support.grammar.grammars import END, allowed, new_row, pick, small_vocabulary
from weft.grammar import CompiledGuide, Matcher
from weft.guided.state import GuidedShape, GuidedState

NUM_SLOTS = 5
END_ONLY = new_row()
END_ONLY[END // 32] = 1 << (END % 32)


class Slot:
    """The text of a slot, and the drafts that the device has for it."""

    def __init__(self, guide: CompiledGuide | None) -> None:
        self.guide = guide
        self.text: list[int] = []
        self.drafts: list[int] = []

    def mask(self, drafts: list[int]) -> np.ndarray:
        """The oracle's mask: that of a new matcher that has accepted the text and `drafts`. After an end token it
        allows all end tokens."""
        assert self.guide is not None
        matcher = self.guide.matcher()
        for token in self.text + drafts:
            assert matcher.accept(token)
        row = new_row()
        matcher.fill(row)
        return row

    @property
    def ended(self) -> bool:
        return bool(self.text) and self.text[-1] == END

    def legal_drafts(self) -> int:
        """The number of leading drafts that the grammar accepts, up to an end token."""
        for count, draft in enumerate(self.drafts):
            if END in self.drafts[:count] or draft not in allowed(self.mask(self.drafts[:count])):
                return count
        return len(self.drafts)


class Decoding:
    """Plays the device in Python: drafts, verification, and the tensors between them.

    `sources` are guides for the small vocabulary, each compiled in one or several ways. The first is the oracle's,
    and a slot gets any of them. `workers` is the state's number of workers.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[CompiledGuide]],
        max_drafts: int,
        guided_drafts: bool,
        seed: int,
        workers: int = 0,
    ) -> None:
        self.rng = random.Random(seed)
        self.sources = sources
        self.num_drafts = max_drafts
        self.guided_drafts = guided_drafts
        self.state = GuidedState(
            GuidedShape(NUM_SLOTS, max_drafts, small_vocabulary().vocab_size, [END]),
            workers=workers,
        )
        self.slots = [Slot(None) for _ in range(NUM_SLOTS)]
        self.pending: dict[int, Matcher | None] = {}
        self.owed: list[tuple[int, Slot, tuple[int, list[int]]]] = []

    def row(self, slot: int, position: int) -> np.ndarray:
        return self.state.masks_host[slot * (self.num_drafts + 1) + position].numpy()

    def flag(self, slot: int, position: int) -> int:
        return int(self.state.token_mask_host[slot * (self.num_drafts + 1) + position])

    def renew(self) -> None:
        """Start new requests in slots whose text has ended or is long, and sometimes in others."""
        for number, slot in enumerate(self.slots):
            if slot.ended or len(slot.text) > 30 or (slot.guide is None and self.rng.random() < 0.2):
                ways = self.rng.choice([None, *self.sources])
                self.slots[number] = Slot(ways[0] if ways is not None else None)
                self.pending[number] = self.rng.choice(ways).matcher() if ways is not None else None

    def iterate(self) -> None:
        self.renew()
        batch = self.rng.sample(range(NUM_SLOTS), self.rng.randint(1, NUM_SLOTS))
        batch += [slot for slot in self.pending if slot not in batch]
        epoch = self.state.push([*batch, NUM_SLOTS, NUM_SLOTS], self.pending)
        owes_commit = self.rng.random() < 0.3
        attached, self.pending = set(self.pending), {}
        for number in attached:
            self.slots[number].drafts = []
        self.write_drafts()
        self.state.fetch(owes_commit)
        # Commits of the previous iteration, checked late. By now, its slots may hold new requests.
        for number, slot, found in self.owed:
            if self.slots[number] is slot:
                self.check_committed(number, *found)
        self.owed = []
        for draft in range(
            self.num_drafts if self.guided_drafts and self.num_drafts else 1, self.num_drafts + 1
        ):
            self.state.extend(draft)
        accepted = {number: self.verify(number) for number in batch}
        if owes_commit and self.rng.random() < 0.5:
            self.owed = [(number, self.slots[number], accepted[number]) for number in batch]
            for number in batch:
                self.slots[number].drafts = []
            return
        if owes_commit:
            self.state.commit_owed(epoch)
        else:
            self.state.commit()
        for number in batch:
            self.check_committed(number, *accepted[number])
        self.draft(batch)

    def write_drafts(self) -> None:
        self.state.drafts_host.fill_(-1)
        for number, slot in enumerate(self.slots):
            for j, draft in enumerate(slot.drafts):
                self.state.drafts_host[j, number] = draft

    def verify(self, number: int) -> tuple[int, list[int]]:
        """Sample the target's token at every position under the state's masks, as the device does."""
        slot = self.slots[number]
        tokens = []
        legal = slot.legal_drafts() if slot.guide is not None and not slot.ended else 0
        for position in range(self.num_drafts + 1):
            if slot.guide is None:
                assert self.flag(number, position) == 0
                tokens.append(self.rng.randrange(300))
                continue
            row = self.row(number, position)
            if position <= legal and END not in slot.drafts[:position]:
                np.testing.assert_array_equal(row, slot.mask(slot.drafts[:position]))
            elif not (self.guided_drafts and position > len(slot.drafts)):
                np.testing.assert_array_equal(row, END_ONLY)
            draft = slot.drafts[position] if position < len(slot.drafts) else -1
            choices = allowed(row) or [END]
            agrees = draft in choices and self.rng.random() < 0.7
            tokens.append(draft if agrees else pick(choices, self.rng))
        matches = 0
        while matches < len(slot.drafts) and slot.drafts[matches] == tokens[matches]:
            matches += 1
        self.state.verified_host[number, 0] = matches
        self.state.verified_host[number, 1:] = torch.tensor(tokens)
        return matches, tokens

    def check_committed(self, number: int, count: int, tokens: list[int]) -> None:
        slot = self.slots[number]
        slot.drafts = []
        new = tokens[: count + 1]
        if slot.guide is not None:
            new = [] if slot.ended else new[: new.index(END) + 1] if END in new else new
            assert self.state.status(number) == ("", "")
        slot.text += new
        if slot.guide is None:
            return
        assert self.state.committed(number) == len(slot.text)
        assert self.state.extended(number) == 0
        assert self.state.is_terminated(number) == slot.ended
        np.testing.assert_array_equal(self.row(number, 0), slot.mask([]))
        assert self.flag(number, 0) == 1

    def draft(self, batch: list[int]) -> None:
        for j in range(1, self.num_drafts + 1):
            for number in batch:
                slot = self.slots[number]
                if len(slot.drafts) == j - 1 and self.rng.random() < 0.9:
                    slot.drafts.append(self.pick_draft(number, j))
            if self.guided_drafts and j < self.num_drafts:
                self.write_drafts()
                self.state.extend(j)

    def pick_draft(self, number: int, j: int) -> int:
        slot = self.slots[number]
        if slot.guide is None or self.rng.random() < 0.1:
            return self.rng.randrange(300)
        if self.rng.random() < 0.05:
            return END
        if self.guided_drafts:
            return pick(allowed(self.row(number, j - 1)) or [END], self.rng)
        legal = slot.legal_drafts() == len(slot.drafts) and END not in slot.drafts and not slot.ended
        return pick(allowed(slot.mask(slot.drafts)), self.rng) if legal else self.rng.randrange(300)
