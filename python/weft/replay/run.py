"""Repeats the grammar work of a recording under seeded schedules of the CPU driver, and compares the results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from weft.errors import InputError
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.flight import END_ONLY, UNKNOWN, Operation, SlotEntry, hash_name, hash_rows, operations
from weft.guided.recording import Recording
from weft.replay.replayer import Issuer
from weft.replay.slot_assignments import RefusedAnswer, Tenancies, tenancies
from weft.runtime import cpu


@dataclass(frozen=True)
class Difference:
    """The first difference between a replay and its recording. `iteration` is the snapshot's epoch. `slot`, `request`
    and `row` (a mask row) are None if the difference is not about a single one."""

    seed: int
    iteration: int
    operation: str
    slot: int | None
    request: int | None
    row: int | None
    what: str

    def __str__(self) -> str:
        parts = [f"seed {self.seed}", f"iteration {self.iteration}", self.operation]
        parts += [f"slot {self.slot}"] if self.slot is not None else []
        parts += [f"request {self.request}"] if self.request is not None else []
        parts += [f"row {self.row}"] if self.row is not None else []
        return f"{', '.join(parts)}: {self.what}"


@dataclass
class Replayed:
    """The result of a replay. Counts are over all seeds: `num_entries` slot states and `num_rows` mask rows were
    compared on the host, and `num_seen` mask rows on the device. `notes` lists the parts that were left out."""

    num_iterations: int
    seeds: list[int] = field(default_factory=list)
    num_entries: int = 0
    num_rows: int = 0
    num_seen: int = 0
    num_requests: int = 0
    notes: list[str] = field(default_factory=list)
    difference: Difference | None = None

    @property
    def agrees(self) -> bool:
        """Whether the replay agrees with the recording."""
        return self.difference is None


def replay(recording: Recording, vocabulary: Vocabulary, seeds: Iterable[int] = range(20)) -> Replayed:
    """Replay under the random schedule with each seed, up to the first difference.

    The schedule of the CPU driver is global to the process. Other users of the driver must be idle, and the schedule is
    "inline" afterwards. Raises `InputError` if the vocabulary is not the recording's.
    """
    if vocabulary.fingerprint != recording.fingerprint or vocabulary.vocab_size != recording.vocab_size:
        raise InputError(
            f"the vocabulary is not that of the recording: its fingerprint is {vocabulary.fingerprint[:12]}…, the "
            f"recording's {recording.fingerprint[:12]}…; give the model that it was made with"
        )
    result = Replayed(recording.num_iterations)
    if not recording.operations:
        result.notes.append("no iteration with a guided request was recorded")
        return result
    found = tenancies(recording, vocabulary)
    result.notes += found.notes
    result.num_requests = len({tenant.request.id for tenant in found.compared.values()})
    for seed in seeds:
        result.seeds.append(seed)
        result.difference = _once(recording, found, seed, result)
        if result.difference is not None:
            break
    return result


def _once(recording: Recording, found: Tenancies, seed: int, result: Replayed) -> Difference | None:
    cpu.synchronize()
    # The schedule must not change under work in flight.
    cpu.set_schedule("random", seed)
    try:
        issuer = Issuer(recording, found)
        try:
            issuer.run()
        except RefusedAnswer as refused:
            cpu.synchronize()
            first = recording.operations[0].epoch
            return Difference(seed, first, "attach", None, refused.request.id, None, str(refused))
    finally:
        cpu.synchronize()
        cpu.set_schedule("inline")
    again = operations(issuer.grammar_stream.state.recorded())[2 if recording.max_drafts else 1 :]
    return _compare(recording, found, again, seed, result) or _compare_seen(
        recording, found, issuer, seed, result
    )


def _compare(
    recording: Recording, found: Tenancies, again: list[Operation], seed: int, result: Replayed
) -> Difference | None:
    """Compare the slot states and mask hashes that the operations left on the host."""
    for place, (recorded, done) in enumerate(zip(recording.operations, again, strict=True)):
        assert (recorded.name, recorded.argument) == (done.name, done.argument)
        entries = {entry.slot: entry for entry in done.entries}
        for entry in recorded.entries:
            tenant = found.compared.get((place, entry.slot))
            if tenant is None:
                continue
            result.num_entries += 1
            result.num_rows += sum(row != UNKNOWN for row in entry.rows)
            row, what = _difference(entry, entries.get(entry.slot))
            if what:
                return _at(recorded, seed, entry.slot, tenant.request.id, row, what)
    return None


def _difference(recorded: SlotEntry, done: SlotEntry | None) -> tuple[int | None, str]:
    """Return the mask row that differs, if any, and a description, which is empty if the entries agree."""
    if done is None or done.matcher == 0:
        return None, "the slot has no matcher now; it had one"
    if recorded.inputs != done.inputs:
        return None, f"the grammar saw {list(done.inputs)}; it saw {list(recorded.inputs)}"
    if recorded.status != done.status:
        return None, f"its status is {done.status or 'ok'!r}; it was {recorded.status or 'ok'!r}"
    if recorded.position != done.position:
        return None, f"{done.position} tokens are committed; there were {recorded.position}"
    if recorded.taken != done.taken:
        return None, f"the drafts taken are {list(done.taken)}; they were {list(recorded.taken)}"
    if recorded.ended != done.ended:
        return (
            None,
            f"its grammar has {'' if done.ended else 'not '}ended; it had{'' if recorded.ended else ' not'}",
        )
    if len(recorded.rows) != len(done.rows):
        return None, f"{len(done.rows)} mask rows are made; there were {len(recorded.rows)}"
    for row, (before, now) in enumerate(zip(recorded.rows, done.rows, strict=True)):
        if before not in (now, UNKNOWN):
            return row, f"the mask is {now or 'stale'}; it was {before}"
    return None, ""


def _compare_seen(
    recording: Recording, found: Tenancies, issuer: Issuer, seed: int, result: Replayed
) -> Difference | None:
    """Compare the mask rows that the device saw."""
    end_row = _end_row_hash(recording)
    for seen in issuer.seen:
        for (place, slot), position, value in zip(
            seen.places, seen.positions, seen.hashes.tolist(), strict=True
        ):
            operation = recording.operations[place]
            entry = next(entry for entry in operation.entries if entry.slot == slot)
            expected = end_row if entry.rows[position] == END_ONLY else entry.rows[position]
            if expected == UNKNOWN:
                continue
            result.num_seen += 1
            if hash_name(value) != expected:
                request = found.compared[place, slot].request.id
                what = f"the device has mask {hash_name(value)}; the grammar made {expected}"
                return _at(operation, seed, slot, request, position, what)
    return None


def _end_row_hash(recording: Recording) -> str:
    """Return the hash of a mask row that allows end tokens only."""
    bits = torch.zeros(-(-recording.vocab_size // 32) * 32, dtype=torch.int64)
    bits[list(recording.end_ids)] = 1
    words = (bits.view(-1, 32) << torch.arange(32)).sum(1)
    masks = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)[None].contiguous()
    out = torch.zeros(1, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.int32)
    hash_rows(masks, one, torch.zeros(1, dtype=torch.int32), recording.vocab_size, out)
    return hash_name(int(out))


def _at(operation: Operation, seed: int, slot: int, request: int, row: int | None, what: str) -> Difference:
    name = f"extend({operation.argument})" if operation.name == "extend" else operation.name
    return Difference(seed, operation.epoch, name, slot, request, row, what)
