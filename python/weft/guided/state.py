"""The grammar's state by slot: which matcher each slot has, and which mask rows are filled.

The state changes live in C++ (`csrc/guided/state.h`). Here they get their host memory, and become host tasks.
In the order of one stream: `fetch` takes the snapshot that `push` left, `extend(j)` takes draft j where it is
legal and fills row j (`extend_through(k)`: drafts 1..k at once), `commit` takes back what was not accepted,
takes the bonus token and fills row 0. A slot that fails gets a status; its rows then allow end tokens only,
and every other slot goes on. An iteration whose commit nothing waits for has none: it owes it to the next
`fetch`, or to `commit_owed`, with which the host does it.

S slots and one more for padding, K drafts, V vocabulary, W = ceil(V / 32).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft import _core
from weft.errors import escaped
from weft.grammar.base import Matcher
from weft.runtime.interface import NativeTask

HostMemory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


@dataclass(frozen=True)
class OperationCounters:
    """The cost of one operation since the state was made: calls, mask rows filled, seconds in total and of the longest
    call.
    """

    calls: int
    fills: int
    seconds: float
    max_seconds: float


def host_memory(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Plain zeroed memory, for a state without a device."""
    return torch.zeros(shape, dtype=dtype)


class Edit(NamedTuple):
    """An edit of a slot's text after `committed` tokens since its matcher was attached: drop the last `drop` tokens,
    then append the tokens `append`."""

    committed: int
    drop: int
    append: list[int]


@dataclass(frozen=True)
class GuidedShape:
    """What a state has room for: `num_slots` slots (S) with at most `max_drafts` drafts (K), over `vocab_size` tokens
    (V), of which `end_token_ids` are allowed where nothing else is."""

    num_slots: int
    max_drafts: int
    vocab_size: int
    end_token_ids: Sequence[int]


@dataclass(frozen=True)
class MatcherLimits:
    """How matchers are run. `workers` native threads help when a phase turns out long. A matcher that takes longer than
    `mask_time_limit_s` (0: no limit) from one commit to the next, in whatever it is called for, ends its slot:
    processor time counts, and of waiting what is over 2 s. At most `max_pending` snapshots wait to be fetched."""

    workers: int = 0
    mask_time_limit_s: float = 0.0
    max_pending: int = 64


DEFAULT_LIMITS = MatcherLimits()


class GuidedState:
    """Matchers and mask rows of a shape's slots.

    Host tensors, from `pinned` and by slot: `drafts_host` int64 [K, S+1] (-1: no draft) and `verified_host`
    int64 [S+1, K+2] (the number of accepted drafts, then the tokens of positions 0..K) are read; `masks_host`
    int32 [(S+1)*(K+1), W], `token_mask_host` int32 [(S+1)*(K+1)] (0: nothing to apply) and `temperatures_host` float32
    [(S+1)*(K+1)] (what the matcher wants; negative: nothing) are written. Row slot*(K+1) + j is what may follow the
    committed text and j drafts.

    `native` is the C++ state.
    """

    def __init__(
        self, shape: GuidedShape, *, pinned: HostMemory = host_memory, limits: MatcherLimits = DEFAULT_LIMITS
    ) -> None:
        num_slots, max_drafts, vocab_size = shape.num_slots, shape.max_drafts, shape.vocab_size
        self.num_slots, self.max_drafts, self.vocab_size = num_slots, max_drafts, vocab_size
        self.end_token_ids = tuple(shape.end_token_ids)
        self.num_words = -(-vocab_size // 32)
        rows = (num_slots + 1) * (max_drafts + 1)
        self.drafts_host = pinned((max_drafts, num_slots + 1), torch.int64)
        self.drafts_host.fill_(-1)
        self.verified_host = pinned((num_slots + 1, max_drafts + 2), torch.int64)
        self.masks_host = pinned((rows, self.num_words), torch.int32)
        self.token_mask_host = pinned((rows,), torch.int32)
        self.temperatures_host = pinned((rows,), torch.float32)
        self.temperatures_host.fill_(-1)
        self.native = _core.GuidedState(
            num_slots,
            max_drafts,
            vocab_size,
            list(shape.end_token_ids),
            self.drafts_host.data_ptr(),
            self.verified_host.data_ptr(),
            self.masks_host.data_ptr(),
            self.token_mask_host.data_ptr(),
            self.temperatures_host.data_ptr(),
            limits.workers,
            limits.mask_time_limit_s,
            limits.max_pending,
        )

        self.committed: Callable[[int], int] = self.native.committed
        """Tokens that a slot's matcher took for good since it was attached; after an end token none count."""
        self.commit_owed: Callable[[int], None] = self.native.commit_owed
        """After iteration `epoch` is done: commit what it owes, unless that was done, or wait for a `fetch` that is at
        it. On any thread."""

    def push(
        self, slots: Sequence[int], attach: Mapping[int, Matcher | None] | None = None, *, epoch: int = 0
    ) -> int:
        """Leave the snapshot of the next iteration, before it is launched; returns its epoch.

        `slots` are the slots that the iteration works on; the padding slot S may appear, any number of times.
        `attach` gives slots a matcher or, with None, takes it away; either resets the slot. A matcher has at
        most one slot, and belongs to it until an iteration without it is done; it leaves with the committed
        text, so it can be attached again. An `epoch` says which iteration this is (default: one more than the
        last). Raises `ValueError` for what does not fit, `GraphError` when `max_pending` iterations were
        pushed and not launched.
        """
        epoch = self.native.push(list(slots), dict(attach or {}), epoch)
        return epoch

    def fetch(self, owes_commit: bool = False) -> None:
        """Take the oldest snapshot; attached slots get row 0. Without one, or with one of another iteration,
        the slots fail. What the iteration before owes is committed first. With `owes_commit` this one has no `commit`.
        """
        self.native.fetch(owes_commit)

    def forget_owed(self, epoch: int) -> None:
        """After iteration `epoch` failed and nothing of it is in flight: what it owes is never committed."""
        self.native.forget_owed(epoch)

    def extend(self, draft: int) -> None:
        """Take draft `draft` (1..K) of every guided slot that took the ones before it, and fill row
        `draft`.
        """
        self.native.extend(draft)

    def extend_through(self, count: int) -> None:
        """`extend(1)` to `extend(count)` at once. Drafts taken before that are still the same cost nothing."""
        self.native.extend_through(count)

    def commit(self) -> None:
        """Take back drafts that were not accepted, take the bonus token, fill row 0."""
        self.native.commit()

    def release(self, slot: int) -> None:
        """Take the slot back to its committed text; the matcher stays. With nothing in flight."""
        self.native.release(slot)

    def vacate(self, slots: Sequence[int]) -> None:
        """Let go of the slots' matchers at once, ahead of the push that takes them away. With nothing in flight."""
        self.native.vacate(list(slots))

    def record(self, max_bytes: int) -> None:
        """Keep records of the last operations in `max_bytes` of memory (0: none), for `weft.guided.flight`; what there
        was is forgotten. With nothing in flight. Raises `ValueError` for less than one operation may take.

        Every mask row is hashed when it is filled (16 bytes a cycle, about), on the thread that fills it.
        """
        self.native.record(max_bytes)

    def recorded(self) -> bytes:
        """The records, oldest first; `weft.guided.flight.operations` reads them. At any time, on any thread."""
        return self.native.recorded()

    def task(self, operation: str, argument: int = 0) -> NativeTask:
        """`"fetch"` (1: it owes its commit), `"commit"`, `"extend"` (its draft, 1..K) or `"extend_through"` (their
        number, 0..K) as a host task.
        """
        name, function, data = self.native.task(operation, argument)
        return NativeTask(name, function, data, self)

    def status(self, slot: int) -> tuple[str, str]:
        """Code and message (one line) of what ended the slot's grammar: ("", "") while all is well.

        Codes: "refused" (a committed token is not in the grammar), "dead_end" (no token may follow),
        "matcher" (it failed), "time_limit" (it took too long), "epoch" (snapshots and iterations out of step),
        "verified" (the verified tensor contradicts the drafts), "edited" (the matcher edits the text: `edit`).
        """
        code, message = self.native.status(slot)
        return ("" if code == "ok" else code), escaped(message)

    def edit(self, slot: int) -> Edit | None:
        """The edit of a slot whose status is "edited", else None."""
        values = self.native.edit(slot)
        return None if values is None else Edit(*values)

    def extended(self, slot: int) -> int:
        """Drafts that the slot's matcher has taken beyond the committed text."""
        count: int = self.native.extended(slot)
        return count

    def is_terminated(self, slot: int) -> bool:
        """Whether an end token was committed."""
        return bool(self.native.is_terminated(slot))

    def is_guided(self, slot: int) -> bool:
        """Whether the slot has a matcher."""
        return bool(self.native.is_guided(slot))

    @property
    def num_failed(self) -> int:
        """How many slots have a status; cheap to read every iteration."""
        count: int = self.native.num_failed
        return count

    @property
    def num_pending(self) -> int:
        """Snapshots pushed and not fetched."""
        count: int = self.native.num_pending
        return count

    @property
    def epoch(self) -> int:
        """The epoch of the last snapshot that was fetched."""
        epoch: int = self.native.epoch
        return epoch

    @property
    def pushed_epoch(self) -> int:
        """The epoch of the last snapshot that was pushed."""
        epoch: int = self.native.pushed_epoch
        return epoch

    @property
    def seconds(self) -> float:
        """What all operations have taken so far, on any thread."""
        seconds: float = self.native.seconds
        return seconds

    def counters(self, operation: str) -> OperationCounters:
        """What `"fetch"`, `"extend"` (`"extend_through"` counts as one call of it) or `"commit"` has cost so far."""
        return OperationCounters(*self.native.counters(operation))
