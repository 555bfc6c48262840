"""The states of all layers, by slot: the counterpart of `PagedKV` for layers that remember a fixed size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from weft.models.memory import Convolution, Decay, LayerMemory, Recurrence, State
from weft.ops.recurrence import (
    COLUMNS,
    ConvolutionCache,
    RecurrentCache,
    branch_states,
    load_states,
    open_states,
    settle_recurrence,
    settle_window,
)
from weft.ops.state_rows import StateRows
from weft.runtime.host_memory import lazy_zeros

_ALIGNMENT = 16  # floats of a cache line
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class LayerStates:
    """The storage of a layer's state, in the order of its `State`."""

    convolutions: tuple[ConvolutionCache, ...]
    recurrences: tuple[RecurrentCache, ...]


class States:
    """Storage for the states of a model's layers, by slot. Everything is on the device, and float32.

    There are S slots for sequences; one more slot, the last, pads. A storage row holds the state of all layers after
    some token of a text. Rows 0..S belong to the slots. With beams a slot has a second row, which is S + 1 rows later:
    a beam reads its parent's row and writes its other one. Then come the snapshots.

    layers: by layer, None for a layer without a state.
    storage: [storage rows, floats of a row].
    drafts: [S+1, D, floats], the inputs of the drafts in each slot's last iteration. The slot's storage row is the
        state before them.
    source, target, owed: int64 [S+1], see `StateRows`. The engine writes `owed` when it has verified drafts.
    first_snapshot: the storage row of snapshot 0.
    """

    def __init__(
        self,
        memories: Sequence[LayerMemory],
        num_slots: int,
        num_snapshots: int,
        max_drafts: int,
        has_beams: bool,
        device: torch.device | str,
    ) -> None:
        """`num_slots` is S, `max_drafts` D: the most tokens after the first in a sampling row."""
        device = torch.device(device)
        num_slots += 1
        self.has_beams = has_beams
        self.first_snapshot = num_slots * (2 if has_beams else 1)
        self.num_snapshots = num_snapshots
        self.storage = _zeros(
            (self.first_snapshot + num_snapshots, snapshot_bytes(memories) // _FLOAT), device
        )
        self.drafts = _zeros((num_slots, max_drafts, _draft_floats(memories)), device)
        self.source = torch.arange(num_slots, device=device)
        self.target = torch.arange(num_slots, device=device)
        self.owed = torch.zeros(num_slots, dtype=torch.int64, device=device)
        rows, drafts = _Views(self.storage), _Views(self.drafts)
        self.layers = [
            None
            if memory.state is None
            else LayerStates(
                tuple(
                    ConvolutionCache(*rows.take(_row_shapes(part)), *drafts.take(_draft_shapes(part)))
                    for part in memory.state.convolutions
                ),
                tuple(
                    RecurrentCache(*rows.take(_row_shapes(part)), *drafts.take(_draft_shapes(part)))
                    for part in memory.state.recurrences
                ),
            )
            for memory in memories
        ]

    def rows(self, slots: Tensor, num_speculative: int, saves: Tensor | None = None) -> StateRows:
        """Describe the rows of a call, for `Rows.states`. `slots` is int64 [B], `saves` too (see `StateRows`)."""
        return StateRows(slots, self.source, self.target, self.owed, num_speculative, saves)

    def open(self, slots: Tensor) -> None:
        """Let each of `slots` (int64 [n]) begin a text: it owes nothing. A device function. Padding entries, here and
        below, have the last slot."""
        open_states(self.source, self.target, self.owed, slots)

    def settle(self, slots: Tensor, targets: Tensor, counts: Tensor) -> None:
        """Write the states of `slots` after the first `counts` drafts of their last iteration to the storage rows
        `targets`. All are int64 [n]. Neither slots nor `owed` change. A device function.

        The states are those that the last forward wrote, so call it before `branch`."""
        for layer in self._caches():
            for convolution in layer.convolutions:
                settle_window(convolution, self.target, slots, targets, counts)
            for recurrence in layer.recurrences:
                settle_recurrence(recurrence, self.target, slots, targets, counts)

    def load(self, sources: Tensor, slots: Tensor) -> None:
        """Give `slots` the states of the storage rows `sources`, int64 [n] both. They owe nothing. A device
        function."""
        load_states(self.storage, self.source, self.target, self.owed, sources, slots)

    def branch(self, slots: Tensor, parents: Tensor) -> None:
        """Make `slots` the children of the slots `parents`, int64 [n] both. Each child reads what its parent wrote last
        and writes its other storage row. A slot may be a parent of several, or its own.

        All slots of a beam search branch together before each of their iterations; they owe nothing, because beams
        have no drafts. A device function."""
        assert self.has_beams
        branch_states(self.source, self.target, self.owed, slots, parents)

    def _caches(self) -> Iterator[LayerStates]:
        return (layer for layer in self.layers if layer is not None)


def state_bytes(
    memories: Sequence[LayerMemory], num_slots: int, num_snapshots: int, max_drafts: int, has_beams: bool
) -> int:
    """Bytes of `States` with these arguments; 0 if no layer has a state."""
    slots = (num_slots + 1) * slot_bytes(memories, max_drafts, has_beams)
    return slots + num_snapshots * snapshot_bytes(memories)


def slot_bytes(memories: Sequence[LayerMemory], max_drafts: int, has_beams: bool) -> int:
    """Bytes of a slot, with the inputs of `max_drafts` drafts. A model whose `States` has S slots needs S + 1 times
    as much, and `snapshot_bytes` for each snapshot. 0 if no layer has a state."""
    rows = snapshot_bytes(memories) * (2 if has_beams else 1)
    return rows + max_drafts * _draft_floats(memories) * _FLOAT


def snapshot_bytes(memories: Sequence[LayerMemory]) -> int:
    """Bytes of a snapshot, which is a storage row."""
    return _FLOAT * sum(_size(shape) for part in _parts(memories) for shape in _row_shapes(part))


def _parts(memories: Sequence[LayerMemory]) -> Iterator[Convolution | Recurrence]:
    for memory in memories:
        state = memory.state or State()
        yield from state.convolutions
        yield from state.recurrences


def _row_shapes(part: Convolution | Recurrence) -> list[tuple[int, ...]]:
    """The shapes of a part's tensors in a storage row."""
    if isinstance(part, Convolution):
        return [(part.taps - 1, part.channels)]
    blocks = -(-part.value_size // COLUMNS)
    return [(part.num_heads, blocks, part.key_size, COLUMNS)]


def _draft_shapes(part: Convolution | Recurrence) -> list[tuple[int, ...]]:
    """The shapes of the inputs of a draft."""
    if isinstance(part, Convolution):
        return [(part.channels,)]
    heads = part.num_heads
    decay = {
        Decay.HEAD: (heads,),
        Decay.KEY: (heads, part.key_size),
        Decay.ELEMENT: (heads, part.value_size),
    }
    return [decay[part.decay], (part.num_key_heads, part.key_size), (heads, part.value_size)]


def _draft_floats(memories: Sequence[LayerMemory]) -> int:
    return sum(_size(shape) for part in _parts(memories) for shape in _draft_shapes(part))


def _size(shape: Sequence[int]) -> int:
    return -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT


class _Views:
    """Divides a tensor's last dimension into views, one after another."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.at = tensor, 0

    def take(self, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """The next views, [..., *shape] each."""
        for shape in shapes:
            begin, self.at = self.at, self.at + _size(shape)
            yield self.tensor[..., begin : begin + prod(shape)].unflatten(-1, shape)


def _zeros(shape: tuple[int, ...], device: torch.device) -> Tensor:
    if device.type == "cpu":
        return lazy_zeros(shape, torch.float32)
    return torch.zeros(shape, device=device)
