"""Issues the turns of a recording again to a grammar stream on the CPU driver, in the order of `engine/runner/step.py`.

In place of the model, a launched function writes the recorded drafts and verified tokens. Another one hashes the mask
rows at the point where the model would read them, after the same waits. Besides, the host waits only for the turn
before the last, as the engine does. If the engine deferred a commit to its next iteration, the replay does it in its
own turn.

S slots, K drafts, B rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.grammar.base import Matcher
from weft.guided.flight import Operation, SlotEntry, hash_rows
from weft.guided.grammar_stream import GrammarStream
from weft.guided.proposals import Proposals, Sources
from weft.guided.recording import Recording
from weft.guided.state import GuidedShape, GuidedState
from weft.replay.iterations import Shape, Turn, turns
from weft.replay.slot_assignments import Place, Tenancies
from weft.runtime.cpu import CpuRuntime
from weft.runtime.interface import Event

IN_FLIGHT = 2

COLUMN = torch.zeros(1, dtype=torch.int64)
"""Token ids of the logits' columns: the replay's logits have a single column, for token 0."""


@dataclass(frozen=True)
class Seen:
    """Hashes of mask rows as the device saw them, int64 [N]. Entry i is about row `positions[i]` of the slot in
    `places[i]`."""

    places: list[Place]
    positions: list[int]
    hashes: Tensor


class Issuer:
    """Issues one replay. `grammar_stream.state` records it; read `seen` after `run`."""

    def __init__(self, recording: Recording, found: Tenancies) -> None:
        self.runtime = CpuRuntime()
        self.stream = self.runtime.stream()
        shape = GuidedShape(
            recording.num_slots, recording.max_drafts, recording.vocab_size, recording.end_ids
        )
        proposals = self._proposals if "forced" in recording.sources else None
        self.grammar_stream = GrammarStream(self.runtime, shape, make_proposals=proposals)
        self.seen: list[Seen] = []
        self._found = found
        self._turns = turns(recording.operations)
        self._in_flight: deque[Event] = deque()
        self._held: dict[int, bool] = {}  # by slot: whether it has a matcher since the last push
        self._first_epoch = 0
        self.grammar_stream.state.record(8 * self._words_needed(recording))

    def run(self) -> None:
        """Issue all turns and wait for them. Raises `RefusedAnswer` if a guide refuses the recorded answer of its
        request."""
        self._begin()
        for turn in self._turns:
            if len(self._in_flight) == IN_FLIGHT:
                self._in_flight.popleft().synchronize()
            self._turn(turn)
            done = self.runtime.event()
            self.stream.record(done)
            self._in_flight.append(done)
        self.stream.synchronize()
        self.grammar_stream.close()

    def _begin(self) -> None:
        """Restore the slots that were in use when the recording began: attach matchers that have accepted the committed
        text, and let them take the recorded drafts."""
        first = self._turns[0].fetch
        self._first_epoch = first.epoch if first.argument else first.epoch - 1
        seeds = self._found.seeds
        for slot, (_, entry) in seeds.items():
            drafts = [*entry.taken, entry.refused][: self.grammar_stream.state.max_drafts]
            self.grammar_stream.drafts[: len(drafts), slot] = torch.tensor(drafts, dtype=torch.int64)
        self._push(list(seeds), {slot: tenant.matcher() for slot, (tenant, _) in seeds.items()})
        self.grammar_stream.all_masks(self.stream, self._slots(list(seeds)))
        self.grammar_stream.join(self.stream)

    def _turn(self, turn: Turn) -> None:
        fetch, place = turn.fetch, turn.first
        if fetch.argument == 0:  # 0: the fetch found a snapshot
            changes: dict[int, Matcher | None] = {}
            for slot in fetch.attached:
                tenant = self._found.comes.get((place, slot))
                if tenant is not None:
                    changes[slot] = tenant.matcher()
                elif self._held.get(slot):
                    changes[slot] = None
            self._push(fetch.slots, changes, fetch.epoch)
        if turn.shape is Shape.OTHER:
            return self._one_by_one(turn)
        grammar_stream, stream, slots_B = self.grammar_stream, self.stream, self._slots(fetch.slots)
        verified = turn.num_verified
        if verified:
            self._write_drafts(turn.operations[1])
        grammar_stream.verify_masks(stream, slots_B, verified)
        grammar_stream.apply_verify(stream, self._logits(slots_B, verified + 1), slots_B, COLUMN)
        self._look(place, fetch, [0])  # the first masks of matchers that the fetch attached
        if verified:
            self._look(place + 1, turn.operations[1], range(1, verified + 1))
        at = 2 if verified or turn.operations[1].name == "extend_through" else 1
        self._write_verified(turn.operations[at])
        grammar_stream.commit_masks(stream, slots_B, copies=True)
        if grammar_stream.proposals is not None:
            grammar_stream.propose(stream, grammar_stream.state.max_drafts, is_committed=True)
        extends = turn.operations[at + 1 :]
        for j in range(1, len(extends) + 2 if extends else 1):  # only if the grammar masks drafts
            grammar_stream.apply_draft(stream, self._logits(slots_B, 1)[:, 0], slots_B, j, COLUMN)
            self._look(place + at + j - 1, turn.operations[at + j - 1], [j - 1])
            if j <= len(extends):
                self._write_drafts(extends[j - 1])
                grammar_stream.extend_masks(stream, j, slots_B, copies=True)
        grammar_stream.join(stream)
        if not extends:
            self._look(place + at, turn.operations[at], [0])

    def _one_by_one(self, turn: Turn) -> None:
        """Issue each operation by itself, as the host does between captured parts of a split graph."""
        grammar_stream, stream = self.grammar_stream, self.stream
        for operation in turn.operations:
            if operation.name == "release":
                stream.synchronize()
                grammar_stream.state.release(operation.argument)
                continue
            if operation.name == "commit":
                self._write_verified(operation)
                stream.copy(grammar_stream.state.verified_host, grammar_stream.verified)
            elif operation.name != "fetch":
                self._write_drafts(operation)
                stream.copy(grammar_stream.state.drafts_host, grammar_stream.drafts)
            stream.record(grammar_stream.token_event)
            grammar_stream.stream.wait(grammar_stream.token_event)
            argument = operation.argument if operation.name != "fetch" else 0
            grammar_stream.stream.hostfunc(grammar_stream.state.task(operation.name, argument))
            grammar_stream.join(stream)

    # -- the parts that the engine and its model have in the original run

    def _push(
        self, slots: Sequence[int], changes: dict[int, Matcher | None], epoch: int | None = None
    ) -> None:
        self._held |= {slot: matcher is not None for slot, matcher in changes.items()}
        own = 1 if epoch is None else epoch - self._first_epoch + 1
        self.grammar_stream.state.push(slots, changes, epoch=own)

    def _slots(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(list(slots) or [self.grammar_stream.state.num_slots], dtype=torch.int64)

    def _logits(self, slots_B: Tensor, width: int) -> Tensor:
        """Return logits [B, width, 1] for the masks to apply to. Nothing reads the result."""
        return torch.zeros(len(slots_B), width, 1)

    def _write_drafts(self, operation: Operation) -> None:
        first = operation.argument if operation.name == "extend" else 1
        for length, entries in _by_length(operation.entries):
            slots, values = _columns(entries, length)
            self.stream.launch(write_drafts, self.grammar_stream.drafts, first - 1, slots, values)

    def _write_verified(self, operation: Operation) -> None:
        for length, entries in _by_length(operation.entries):
            slots, values = _columns(entries, length)
            self.stream.launch(write_verified, self.grammar_stream.verified, slots, values)

    def _look(self, place: int, operation: Operation, positions: Sequence[int]) -> None:
        """Launch the hash of the device's mask rows that the operation made."""
        width = self.grammar_stream.num_positions
        looks = [
            ((place, entry.slot), position)
            for entry in operation.entries
            for position in positions
            if (place, entry.slot) in self._found.compared and position < len(entry.rows)
        ]
        if not looks:
            return
        rows = torch.tensor([slot * width + position for (_, slot), position in looks], dtype=torch.int32)
        hashes = torch.zeros(len(looks), dtype=torch.int64)
        masks, token_mask = self.grammar_stream.masks, self.grammar_stream.token_mask
        vocab_size = self.grammar_stream.state.vocab_size
        self.stream.launch(hash_rows, masks, token_mask, rows, vocab_size, hashes)
        self.seen.append(Seen([p for p, _ in looks], [position for _, position in looks], hashes))

    def _proposals(self, state: GuidedState) -> Proposals:
        return Proposals(state, self.runtime.pinned, Sources(forced=True))

    def _words_needed(self, recording: Recording) -> int:
        """Return the size of the record of the replay in words, with room for the operations of `_begin`."""
        entry = 3 * recording.max_drafts + 16
        longest = 16 + (recording.num_slots + 1) * entry
        return 2 * sum(operation.num_words for operation in recording.operations) + 8 * longest


def write_drafts(drafts: Tensor, first: int, slots_N: Tensor, values_LN: Tensor) -> None:
    """Write drafts first+1, first+2, ... of some slots."""
    drafts[first : first + values_LN.shape[0]].index_copy_(1, slots_N, values_LN)


def write_verified(verified: Tensor, slots_N: Tensor, values_LN: Tensor) -> None:
    """Write the verified tokens of some slots."""
    verified[:, : values_LN.shape[0]].index_copy_(0, slots_N, values_LN.T)


def _by_length(entries: Sequence[SlotEntry]) -> list[tuple[int, list[SlotEntry]]]:
    """Group entries by their number of inputs. Entries without inputs are left out."""
    lengths = sorted({len(entry.inputs) for entry in entries} - {0})
    return [(length, [e for e in entries if len(e.inputs) == length]) for length in lengths]


def _columns(entries: Sequence[SlotEntry], length: int) -> tuple[Tensor, Tensor]:
    """Return slots [N] and inputs [length, N], both int64."""
    slots = torch.tensor([entry.slot for entry in entries], dtype=torch.int64)
    return slots, torch.tensor([entry.inputs for entry in entries], dtype=torch.int64).T.contiguous()
