"""Logits processors that are device functions: captured with the iteration, and kept as long as graphs hold them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.engine.device.state import SlotState, StepBuffers
from weft.engine.features.logits_processors import CapturedProcessor, kind_of
from weft.errors import CapacityError
from weft.runtime.interface import Stream

MAX_CAPTURED = 8
"""Processors that are captured and in use at a time: graphs are kept for each set of them."""


class CapturedProcessors:
    """The device functions that an engine's graphs hold, `MAX_CAPTURED` at a time. `forget` lets go of the graphs of
    one that leaves."""

    def __init__(self, forget: Callable[[CapturedProcessor], None]) -> None:
        self._forget = forget
        self._numbers = itertools.count(1)
        self._entries: list[CapturedProcessor] = []  # the one used last is last

    def take(self, processor: LogitsProcessor) -> CapturedProcessor:
        """The entry of a processor's function. Raises `CapacityError` where all are in use by other requests."""
        entry = next(
            (e for e in self._entries if e.function is processor.function and e.failure is None), None
        )
        if entry is None:
            if len(self._entries) >= MAX_CAPTURED:
                self._drop_unused()
            entry = CapturedProcessor(processor.name, processor.function, next(self._numbers))
        else:
            self._entries.remove(entry)
        self._entries.append(entry)
        entry.users += 1
        return entry

    def give_back(self, entry: CapturedProcessor) -> None:
        """A request that has it ended."""
        entry.users -= 1
        if not entry.users and entry.failure is not None:
            self._drop(entry)

    def _drop_unused(self) -> None:
        unused = next((entry for entry in self._entries if not entry.users), None)
        if unused is None:
            raise CapacityError(
                f"{MAX_CAPTURED} captured logits processors are in use; give requests the same function, or one "
                "without allows_capture"
            )
        self._drop(unused)

    def _drop(self, entry: CapturedProcessor) -> None:
        self._entries.remove(entry)
        self._forget(entry)


def run_captured(processor: CapturedProcessor, state: SlotState, buf: StepBuffers, stream: Stream) -> None:
    """Let a device function act on the rows that are its own. Where it raises, it is left out from then on."""
    if processor.failure is not None:
        return
    slots_B = buf.slots_B
    active_B = state.processors.index_select(0, slots_B) == processor.number
    rows = ProcessorRows(
        active=active_B,
        slots=slots_B.clone(),
        request_ids=state.request_ids.index_select(0, slots_B),
        tokens=buf.tokens_BT.clone(),
        lengths=buf.verified.base_B + 1,
    )
    logits_BTV = buf.logits_BTV.clone()
    try:
        result = processor.function(rows, logits_BTV, stream)
        if result is not None:
            if not isinstance(result, Tensor) or result.shape != logits_BTV.shape:
                raise TypeError(
                    f"it returned {kind_of(result)}; it may return None or a tensor {list(logits_BTV.shape)}"
                )
            logits_BTV = result.to(logits_BTV.dtype)
    except BaseException as error:  # also what would end a thread: it is the engine's
        processor.failure = error
        return
    buf.logits_BTV.copy_(torch.where(active_B[:, None, None], logits_BTV, buf.logits_BTV))
