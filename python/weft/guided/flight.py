"""Records of the last operations of a `GuidedState`: the inputs of each, and the state of every slot after it.

`GuidedState.record` switches them on. They are words in a ring buffer, with the layout of `csrc/guided/recording.cpp`;
here they become `Operation`s.
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
"""In place of a hash, for rows without a matcher's mask: stale (or filled before the recording began), and end tokens
only."""


@dataclass(frozen=True)
class SlotEntry:
    """The state of a slot after an operation.

    `matcher` is its matcher's serial number (0: unguided), and `position` the number of tokens that the matcher took
    for good since the start of its guide. `taken` are the drafts after those, `refused` the draft after these that
    was not taken (-1: none). `rows` are hashes of the mask rows 0, 1, ..., in hex (or `UNKNOWN`, `END_ONLY`).
    `inputs` are the operation's: the drafts, or the number of accepted drafts and the verified tokens."""

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
    """One operation on all slots of an iteration.

    `argument` is the draft of an "extend", the number of drafts of an "extend_through", the slot of a "release", and 1
    for a "fetch" without a snapshot. A "fetch" has the snapshot's `slots`, and in `attached` the slots that it changed:
    True for those that got a matcher.
    """

    name: str
    epoch: int
    argument: int = 0
    slots: tuple[int, ...] = ()
    attached: dict[int, bool] = field(default_factory=dict)
    entries: tuple[SlotEntry, ...] = ()

    @property
    def num_words(self) -> int:
        """The approximate size of its record."""
        entries = sum(8 + len(e.taken) + len(e.rows) + len(e.inputs) for e in self.entries)
        return 7 + len(self.slots) + 2 * len(self.attached) + entries

    def to_json(self) -> dict[str, Any]:
        """As plain data, without fields that have their default."""
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
    """The operations of `GuidedState.recorded`, oldest first."""
    words: list[int] = np.frombuffer(records, dtype=np.int64).tolist()
    all_operations, at = [], 0
    while at < len(words):
        all_operations.append(_operation(words, at))
        at += words[at]
    return all_operations


def hash_rows(
    masks: torch.Tensor, flags: torch.Tensor, rows: torch.Tensor, vocab_size: int, out: torch.Tensor
) -> None:
    """Write the hashes of rows int32 [N] of `masks` int32 [R, W] with `flags` int32 [R] to `out` int64 [N], as
    entries have them. All on the CPU."""
    _core.hash_mask_rows(masks.numpy(), flags.numpy(), rows.numpy(), vocab_size, out.numpy())


def hash_name(value: int) -> str:
    """The text of a row's hash in entries, from a signed 64-bit number."""
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
    if status == "spliced":  # as older versions called it
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
    """Numbers from a file. Raises `InputError`, `TypeError` or `ValueError` unless all are integers of 64 bits."""
    numbers = tuple(int(value) for value in values)
    if any(not -(2**63) <= number < 2**63 for number in numbers):
        raise InputError("it holds a number of more than 64 bits")
    return numbers
