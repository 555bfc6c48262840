"""Decodes the records of a `GuidedState`'s last operations: the inputs of each, and the state of its slots after it.

`GuidedState.record` switches recording on. C++ writes the records as 64-bit words to a ring buffer, with the layout of
`csrc/guided/recording.cpp`. This file turns them into `Operation`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weft import _core
from weft.errors import InputError

OPERATIONS = ("fetch", "extend", "commit", "extend_through", "release")
STATUSES = ("", "refused", "dead_end", "matcher", "time_limit", "epoch", "verified", "edited")
UNKNOWN, END_ONLY = "", "end"
"""Stand in for the hash of a mask row that no matcher filled. UNKNOWN: the row is stale, or was filled before the
recording began. END_ONLY: it allows end tokens only."""


@dataclass(frozen=True)
class SlotEntry:
    """The state of a slot after an operation.

    matcher: its matcher's serial number (0: unguided).
    position: the number of committed tokens that the matcher has accepted since it started.
    taken: the drafts after those that the matcher has accepted.
    refused: the next draft, which the matcher refused (-1: none).
    rows: the hashes of mask rows 0, 1, ..., in hex (or `UNKNOWN`, `END_ONLY`).
    inputs: the operation's inputs: the drafts, or the number of accepted drafts and the verified tokens.
    """

    slot: int
    matcher: int = 0
    status: str = ""
    ended: bool = False
    position: int = 0
    refused: int = -1
    taken: tuple[int, ...] = ()
    rows: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One operation: on the slots of an iteration, or for "release" on one slot.

    argument: depends on the operation. "extend": the draft's number. "extend_through": the number of drafts. "release":
        the slot. "fetch": 1 if there was no snapshot.
    slots: the snapshot's slots, for a "fetch".
    attached: the slots whose matcher the snapshot changed, for a "fetch": True if the slot got a matcher.
    entries: the state afterwards of guided slots, and for a "commit" also of unguided ones. An owed commit
        (`GrammarStream`) has guided slots only.
    """

    name: str
    epoch: int
    argument: int = 0
    slots: tuple[int, ...] = ()
    attached: dict[int, bool] = field(default_factory=dict)
    entries: tuple[SlotEntry, ...] = ()

    @property
    def num_words(self) -> int:
        """The approximate size of its record in 64-bit words."""
        entries = sum(8 + len(e.taken) + len(e.rows) + len(e.inputs) for e in self.entries)
        return 7 + len(self.slots) + 2 * len(self.attached) + entries

    def to_json(self) -> dict[str, Any]:
        """The operation as JSON data, without fields that have their default value."""
        data: dict[str, Any] = {"op": self.name, "epoch": self.epoch}
        if self.argument:
            data["argument"] = self.argument
        if self.slots:
            data["slots"] = list(self.slots)
        if self.attached:
            data["attached"] = [[slot, has_matcher] for slot, has_matcher in self.attached.items()]
        data["entries"] = [_entry_to_json(entry) for entry in self.entries]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Operation:
        """The inverse of `to_json`. Raises `InputError`, `KeyError`, `TypeError` or `ValueError` for other data."""
        name = data["op"]
        if name not in OPERATIONS:
            raise InputError(f"{name!r} is no operation; there are {', '.join(OPERATIONS)}")
        return cls(
            name,
            int(data["epoch"]),
            int(data.get("argument", 0)),
            integers(data.get("slots", ())),
            {int(slot): bool(has_matcher) for slot, has_matcher in data.get("attached", ())},
            tuple(_entry_from_json(entry) for entry in data["entries"]),
        )


def operations(records: bytes) -> list[Operation]:
    """Decode the result of `GuidedState.recorded`. Returns its operations, oldest first."""
    words: list[int] = np.frombuffer(records, dtype=np.int64).tolist()
    all_operations, at = [], 0
    while at < len(words):
        all_operations.append(_operation(words, at))
        at += words[at]
    return all_operations


def hash_rows(
    masks: torch.Tensor, flags: torch.Tensor, rows: torch.Tensor, vocab_size: int, out: torch.Tensor
) -> None:
    """Hash mask rows as entries do. All tensors are on the CPU.

    masks, flags: int32 [R, W] and int32 [R], the masks and their `token_mask`.
    rows: int32 [N], the rows to hash.
    out: int64 [N], receives the hashes.
    """
    _core.hash_mask_rows(masks.numpy(), flags.numpy(), rows.numpy(), vocab_size, out.numpy())


def hash_name(value: int) -> str:
    """Format a row's hash, a signed 64-bit number, as entries have it."""
    if value in (0, 1):
        return END_ONLY if value else UNKNOWN
    return f"{value & (2**64 - 1):016x}"


def _operation(words: Sequence[int], at: int) -> Operation:
    operation, epoch, argument, num_slots = words[at + 1 : at + 5]
    at += 5
    slots = tuple(words[at : at + num_slots])
    at += num_slots
    num_changes = words[at]
    changes = words[at + 1 : at + 1 + 2 * num_changes]
    at += 1 + 2 * num_changes
    attached = {slot: bool(flag) for slot, flag in zip(changes[::2], changes[1::2], strict=True)}
    num_entries = words[at]
    at += 1
    entries = []
    for _ in range(num_entries):
        entry, at = _entry(words, at)
        entries.append(entry)
    return Operation(OPERATIONS[operation], epoch, argument, slots, attached, tuple(entries))


def _entry(words: Sequence[int], at: int) -> tuple[SlotEntry, int]:
    slot, matcher, flags, position, extended, refused, num_rows, num_inputs = words[at : at + 8]
    rows_at = at + 8 + extended
    inputs_at = rows_at + num_rows
    end = inputs_at + num_inputs
    entry = SlotEntry(
        slot,
        matcher,
        STATUSES[flags & 255],
        bool(flags & 256),
        position,
        refused,
        tuple(words[at + 8 : rows_at]),
        tuple(hash_name(value) for value in words[rows_at:inputs_at]),
        tuple(words[inputs_at:end]),
    )
    return entry, end


_DEFAULT = SlotEntry(0)


def _entry_to_json(entry: SlotEntry) -> dict[str, Any]:
    data: dict[str, Any] = {"slot": entry.slot}
    for name in ("matcher", "status", "ended", "position", "refused", "taken", "rows", "inputs"):
        value = getattr(entry, name)
        if value != getattr(_DEFAULT, name):
            data[name] = list(value) if isinstance(value, tuple) else value
    return data


def _entry_from_json(data: dict[str, Any]) -> SlotEntry:
    status = data.get("status", "")
    if status == "spliced":  # older versions' name
        status = "edited"
    if status not in STATUSES:
        raise InputError(f"{status!r} is no status of a slot")
    return SlotEntry(
        int(data["slot"]),
        int(data.get("matcher", 0)),
        status,
        bool(data.get("ended", False)),
        int(data.get("position", 0)),
        int(data.get("refused", -1)),
        integers(data.get("taken", ())),
        tuple(str(row) for row in data.get("rows", ())),
        integers(data.get("inputs", ())),
    )


def integers(values: Sequence[Any]) -> tuple[int, ...]:
    """Convert values from a file to integers. Raises `InputError`, `TypeError` or `ValueError` unless all are signed
    64-bit integers."""
    numbers = tuple(int(value) for value in values)
    if any(not -(2**63) <= number < 2**63 for number in numbers):
        raise InputError("it holds a number of more than 64 bits")
    return numbers
