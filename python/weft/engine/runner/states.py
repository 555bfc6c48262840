"""Moves of recurrent states: launches that begin a slot's state, load it from a snapshot, and keep it in one.

A state is by slot (`models/states.py`). Host work only names slots and rows of snapshots; the order of launches makes
them right. A launch's errors go to the batch's `PageMoves`, because the host's view of what is cached is then wrong.
"""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

import torch
from torch import Tensor

from weft.engine.runner.in_flight import PageMoves
from weft.engine.scheduler.scheduler import Load, Settle
from weft.models.states import States
from weft.runtime.buffers import pinned_copy
from weft.runtime.interface import Runtime, Stream


class SlotStates(NamedTuple):
    """Launches moves of `states` to the engine's stream. The last snapshot of `states` is not the block manager's: it
    holds a slot's state while a prompt is read twice."""

    runtime: Runtime
    stream: Stream
    states: States

    def settle(self, settles: abc.Sequence[Settle], moves: PageMoves) -> None:
        """Keep the states of slots that were released. Launch this before all other work of a step."""
        if settles:
            slots, rows, counts = self._columns(settles)
            self.stream.launch(_guarded, moves, _settle, self.states, slots, rows, counts)

    def load(self, loads: abc.Sequence[Load], moves: PageMoves) -> None:
        """Give slots that were opened the states that are kept."""
        if loads:
            rows, slots = self._columns(loads)
            self.stream.launch(_guarded, moves, _load, self.states, rows, slots)

    def keep(self, slot: int) -> None:
        """Keep the state of a slot that owes nothing, until `put_back`."""
        slots, rows, counts = self._columns([(slot, self._spare_row, 0)])
        self.stream.launch(_settle, self.states, slots, rows, counts)

    def put_back(self, slot: int) -> None:
        """Give the slot the state that was kept."""
        rows, slots = self._columns([(self._spare_row, slot)])
        self.stream.launch(_load, self.states, rows, slots)

    @property
    def _spare_row(self) -> int:
        return self.states.num_snapshots - 1

    def _columns(self, entries: abc.Iterable[tuple[int, ...]]) -> list[Tensor]:
        """The columns of tuples of numbers, each int64 [n] in pinned memory."""
        return [pinned_copy(self.runtime, column, torch.int64) for column in zip(*entries, strict=True)]


def open_states(states: States, slots: Tensor) -> None:
    """Let `slots` (int64 [n], pinned) begin a text. A device function."""
    states.open(slots.to(states.owed.device, non_blocking=True))


def _guarded(moves: PageMoves, fn: abc.Callable[..., None], *args: object) -> None:
    """Call `fn(*args)`. An exception becomes the moves' error."""
    try:
        fn(*args)
    except Exception as error:
        moves.error = moves.error or error


def _settle(states: States, slots: Tensor, rows: Tensor, counts: Tensor) -> None:
    """Write the states of slots to snapshots, after `counts` accepted drafts (-1: all). A device function."""
    device = states.owed.device
    slots, rows, counts = (tensor.to(device, non_blocking=True) for tensor in (slots, rows, counts))
    counts = torch.where(counts < 0, states.owed.index_select(0, slots), counts)
    states.settle(slots, rows + states.first_snapshot, counts)


def _load(states: States, rows: Tensor, slots: Tensor) -> None:
    """Copy snapshots to slots. A device function."""
    device = states.owed.device
    rows, slots = (tensor.to(device, non_blocking=True) for tensor in (rows, slots))
    states.load(rows + states.first_snapshot, slots)
