"""Outputs of a request besides tokens: raw logits, and tensors that the model marks (`models/outputs.py`).

Iterations gather outputs on the device by slot, [S+1, K+1, ...]; position t of a slot is at [slot, t]. A prompt's
outputs are copied part by part to the request's pinned memory. Logits are handled like the marked outputs, but the
iteration itself marks them, under the name `LOGITS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.core import Output
from weft.core.request import LOGITS, NOTHING, Gather
from weft.errors import InputError, ModelError
from weft.models.base import Model, PagedKV
from weft.models.outputs import Collector, collecting
from weft.ops.attention import Rows
from weft.runtime.interface import Runtime, Stream


@dataclass(frozen=True)
class MarkedOutput:
    """The shape and dtype of an output at one position.

    of_logits: whether the output is marked where logits are computed. A prompt then has it only at its last position,
        unless a request wants all logits.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    of_logits: bool


@dataclass(frozen=True)
class OutputBuffers:
    """The outputs that an engine can gather, by name.

    by_slot: the tensors into which iterations gather.
    context: the names of the outputs that prompts may have.
    marked: the shape and dtype of each output.
    """

    by_slot: Mapping[str, Tensor] = field(default_factory=dict)
    context: frozenset[str] = frozenset()
    marked: Mapping[str, MarkedOutput] = field(default_factory=dict)

    @classmethod
    def allocate(
        cls,
        runtime: Runtime,
        stream: Stream,
        model: Model,
        slots: int,
        width: int,
        *,
        generation_logits: bool,
        additional: Iterable[tuple[str, bool]],
    ) -> OutputBuffers:
        """Allocate buffers for `slots` slots and `width` positions.

        `additional` lists pairs of an output's name and whether to gather it for prompts too. Raises `InputError` for a
        name that the model does not mark.
        """
        config, wanted = model.config, dict(additional)
        marked = {LOGITS: MarkedOutput((config.vocab_size,), config.dtype, of_logits=True)}
        if wanted:
            of_model = marked_outputs(runtime, stream, model)
            unknown = sorted(set(wanted) - set(of_model))
            if unknown:
                raise InputError(
                    f"additional_outputs (of an executor: additional_model_outputs) names {unknown[0]!r}, which the "
                    "model does not mark; it has "
                    f"{', '.join(sorted(of_model)) or 'none'}"
                )
            marked |= {name: of_model[name] for name in wanted}
        by_slot = {
            name: torch.zeros(slots, width, *m.shape, dtype=m.dtype, device=model.device)
            for name, m in marked.items()
            if name != LOGITS or generation_logits
        }
        return cls(by_slot, frozenset({LOGITS, *(n for n, context in wanted.items() if context)}), marked)

    def context_tensors(self, runtime: Runtime, gather: Gather, length: int) -> dict[str, Tensor]:
        """Allocate pinned memory [length, ...] for each prompt output that a request wants."""
        marked = ((name, self.marked[name]) for name in gather.context)
        return {name: runtime.pinned((length, *m.shape), m.dtype) for name, m in marked}

    def of_logits(self, names: Iterable[str]) -> bool:
        """Whether one of these outputs needs the logits of every position."""
        return any(self.marked[name].of_logits for name in names)

    def decoding(self, slots_B: Tensor, width: int) -> Collector | None:
        """The collector of an iteration's outputs by slot, for sampling rows of `width` positions; None if the engine
        gathers none. For device functions."""
        return _Iteration(self.by_slot, slots_B, width) if self.by_slot else None


@dataclass(frozen=True)
class _Iteration:
    by_slot: Mapping[str, Tensor]
    slots_B: Tensor
    width: int

    def wants(self, name: str) -> bool:
        return name in self.by_slot

    def take(self, name: str, tensor: Tensor) -> None:
        buffer, num_rows = self.by_slot[name], self.slots_B.shape[0]
        # The sampling rows come first. An iteration that reads prompts also marks their positions.
        values = tensor.reshape(-1, *buffer.shape[2:])[: num_rows * self.width]
        buffer.narrow(1, 0, self.width).index_copy_(
            0, self.slots_B, values.unflatten(0, (num_rows, self.width))
        )


@dataclass(frozen=True)
class ContextOutputs:
    """The collector of the outputs of a prompt's positions start..stop-1. `tensors` has a row for each position of the
    prompt. For device functions."""

    tensors: Mapping[str, Tensor]
    start: int
    stop: int

    def wants(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, tensor: Tensor) -> None:
        kept = self.tensors[name]
        kept[self.start : self.stop].copy_(tensor.reshape(-1, *kept.shape[1:]), non_blocking=True)


class _Names:
    """A collector for a forward over two positions. It records the shape and dtype of every output."""

    def __init__(self) -> None:
        self.marked: dict[str, MarkedOutput] = {}
        self.of_logits = False

    def wants(self, name: str) -> bool:
        return True

    def take(self, name: str, tensor: Tensor) -> None:
        shape = tuple(tensor.shape)
        if shape[:1] == (2,):
            shape = shape[1:]
        elif shape[:2] == (1, 2):
            shape = shape[2:]
        else:
            raise ModelError(
                f"the model marks {name!r} of shape {list(shape)} for tokens [1, 2]; its rows must be positions: "
                "[B * T, ...] or [B, T, ...]"
            )
        self.marked[name] = MarkedOutput(shape, tensor.dtype, self.of_logits)


def marked_outputs(runtime: Runtime, stream: Stream, model: Model) -> dict[str, MarkedOutput]:
    """Find the outputs that a model marks, by a forward over two tokens. Waits for the device."""
    names, device = _Names(), model.device
    runtime.publish()  # so that the stream sees the weights
    with runtime.use(stream), collecting(names):
        tokens = torch.zeros(1, 2, dtype=torch.int64, device=device)
        table = torch.ones(1, 1, dtype=torch.int32, device=device)
        kv = PagedKV.for_model(model, 2, 16, num_slots=1)
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        states = kv.states.rows(zero, num_speculative=0) if kv.states is not None else None
        hidden = model.forward(tokens, kv, Rows(table, zero, 2, states=states))
        names.of_logits = True
        model.logits(hidden.last)
    stream.synchronize()
    return names.marked


class GrowingRows:
    """A tensor [n, ...] that grows by rows. A tensor that `append` has returned never changes."""

    def __init__(self) -> None:
        self._data: Tensor | None = None
        self._count = 0

    def append(self, rows: Tensor) -> Tensor:
        """Append `rows`. Returns a view of all rows."""
        count = self._count + rows.shape[0]
        if self._data is None or self._data.shape[0] < count:
            data = rows.new_empty(max(16, 2 * count), *rows.shape[1:])
            if self._data is not None:
                data[: self._count] = self._data[: self._count]
            self._data = data
        self._data[self._count : count] = rows
        self._count = count
        return self._data[:count]


class Gathered:
    """The outputs that one sequence has gathered so far. `wanted` names them. Reading the prompt writes its outputs to
    `context`."""

    def __init__(self, wanted: Gather = NOTHING) -> None:
        self.wanted = wanted
        self.context: dict[str, Tensor] = {}
        self._generated: dict[str, GrowingRows] = {}

    def add(self, output: Output, generated: Mapping[str, Tensor]) -> None:
        """Append an iteration's outputs to `output`: for each name the rows [n, ...] of the new tokens. Call it only
        after the prompt is read."""
        self.add_context(output)
        for name, rows in generated.items():
            values = self._generated.setdefault(name, GrowingRows()).append(rows)
            if name == LOGITS:
                output.generation_logits = values
            else:
                output.additional[name] = values

    def add_context(self, output: Output) -> None:
        """Move the prompt's outputs to `output`. Call it only after the prompt is read."""
        for name, tensor in self.context.items():
            if name == LOGITS:
                output.context_logits = tensor
            else:
                output.additional[f"context_{name}"] = tensor
        self.context = {}
