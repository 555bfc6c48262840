"""Users' logits processors. They get the target's raw logits, before penalties and masks.

There are two kinds. A processor that is a device function is captured in graphs (`CapturedProcessors`, `run_captured`).
The host calls any other processor between the model's forward and sampling, while the iteration waits
(`HostProcessors`).
"""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.engine.device.state import SlotState, StepBuffers
from weft.errors import CapacityError, RequestError
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream

MAX_CAPTURED = 8
"""The limit on captured processors at a time. Each combination of processors in an iteration needs its own graphs."""

HostWork = Callable[[Stream, StepBuffers], None]
"""A function that calls host processors on an iteration's logits, between two launches."""


def failure(name: str, error: BaseException) -> RequestError:
    """Make the error for a request whose processor raised `error`."""
    request_error = RequestError(f"logits processor {name!r} raised {type(error).__name__}: {error}")
    request_error.__cause__ = error
    return request_error


@dataclass(eq=False)
class CapturedProcessor:
    """A processor that graphs capture.

    number: marks the slots that use it, on the device (`SlotState.processors`).
    users: the number of sequences that use it.
    failure: the exception that it raised.
    """

    name: str
    function: Callable[..., Any]
    number: int
    users: int = 0
    failure: BaseException | None = field(default=None, repr=False)


@dataclass(eq=False)
class RequestProcessor:
    """The processor of one sequence.

    captured: the captured processor while the sequence holds slots; None for a host processor.
    failure: the error of a host processor that raised.
    """

    processor: LogitsProcessor
    captured: CapturedProcessor | None = None
    failure: RequestError | None = None

    @property
    def is_on_host(self) -> bool:
        """Whether the host calls the processor."""
        return not self.processor.allows_capture

    def number_for(self, request_id: int) -> int:
        """The request id to pass to the function for the sequence with id `request_id`."""
        fixed = self.processor.request_id
        return request_id if fixed is None else fixed

    def check(self) -> None:
        """Raise `RequestError` if the processor has raised an exception."""
        if self.failure is not None:
            raise self.failure
        if self.captured is not None and self.captured.failure is not None:
            raise failure(self.captured.name, self.captured.failure)


# -- captured


class CapturedProcessors:
    """The processors that an engine's graphs have captured, at most `MAX_CAPTURED`. A new processor replaces the least
    recently used one that no sequence uses. `close_graphs` closes the graphs of a dropped processor."""

    def __init__(self, close_graphs: Callable[[CapturedProcessor], None]) -> None:
        self._close_graphs = close_graphs
        self._numbers = itertools.count(1)
        self._entries: list[CapturedProcessor] = []  # most recently used last

    def take(self, processor: LogitsProcessor) -> CapturedProcessor:
        """Get or make the entry of a processor's function. Raises `CapacityError` if all entries are in use."""
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

    def release(self, entry: CapturedProcessor) -> None:
        """Release an entry that a sequence no longer uses. One that failed is dropped with its last user."""
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
        self._close_graphs(entry)


def run_captured(processor: CapturedProcessor, state: SlotState, buf: StepBuffers, stream: Stream) -> None:
    """Apply a processor to the rows of its slots. A device function.

    The processor runs on a copy of all rows, and only its own rows are taken from the result. If it raises, the error
    stays in `failure`, and later calls skip it.
    """
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
                    f"it returned {_kind_of(result)}; it may return None or a tensor {list(logits_BTV.shape)}"
                )
            logits_BTV = result.to(logits_BTV.dtype)
    except BaseException as error:  # even SystemExit: it must not end the engine's thread
        processor.failure = error
        return
    buf.logits_BTV.copy_(torch.where(active_B[:, None, None], logits_BTV, buf.logits_BTV))


# -- on the host


class StreamHandle(int):
    """A stream's raw handle for other libraries. `torch.cuda.ExternalStream` takes it as a number. Libraries with the
    `__cuda_stream__` protocol get (0, handle). `stream` is the runtime's stream."""

    stream: Stream

    @classmethod
    def of(cls, stream: Stream) -> StreamHandle:
        """Make the handle of a runtime's stream."""
        handle = cls(stream.handle)
        handle.stream = stream
        return handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self)


@dataclass(frozen=True)
class HostRows:
    """A sequence's rows in an iteration: one, or one for each beam. `answers` holds the answer so far of each row.

    processor: the sequence's processor, if it has one.
    is_searched: whether the rows are beams. The processor gets all beams in one call.
    copies: the number of times that the processor sees the row. For the first token, a single row stands for all beams.
    """

    processor: RequestProcessor | None
    sequence_id: int
    prompt: abc.Sequence[int]
    answers: abc.Sequence[abc.Sequence[int]]
    is_searched: bool = False
    copies: int = 1


@dataclass(frozen=True)
class _Call:
    """One call of a host processor, for N beams or for one text (N = 1).

    logits_1NV: the logits after each of the N texts `tokens`.
    target: [V], receives the processed logits of the first text if `logits_1NV` is a copy. None: it is a view of the
        iteration's logits.
    """

    processor: RequestProcessor
    request_id: int
    logits_1NV: Tensor
    tokens: list[list[int]]
    target: Tensor | None = None

    def take(self, result: object) -> None:
        """Store the function's result in the logits. None means that the function changed them in place."""
        if result is not None and result is not self.logits_1NV:
            if not isinstance(result, Tensor) or result.numel() != self.logits_1NV.numel():
                raise TypeError(
                    f"it returned {_kind_of(result)}; it may return None or a tensor of "
                    f"{self.logits_1NV.numel()} values"
                )
            self.logits_1NV.copy_(result.reshape(self.logits_1NV.shape))
        if self.target is not None:
            self.target.copy_(self.logits_1NV[0, 0])


class HostProcessors:
    """Calls host processors between two launches of an iteration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rings: dict[int, PinnedRing] = {}

    def apply(
        self,
        stream: Stream,
        buf: StepBuffers,
        rows: abc.Sequence[HostRows],
    ) -> None:
        """Wait for the forward, then call the processors of `rows` in order, and batched ones at the end. A processor's
        exception becomes its `failure`."""
        # Receive even without rows, because every replay of a split iteration must have the same segments.
        drafts = self._ring(buf).receive(stream)[:, 1:].tolist()
        inner = inner_stream(stream)
        handle = StreamHandle.of(inner)
        batches: dict[int, list[_Call]] = {}
        first = 0
        with self._runtime.use(inner):
            for of_sequence in rows:
                processor, count = of_sequence.processor, len(of_sequence.answers)
                logits_NTV = buf.logits_BTV[first : first + count]
                number, first = first, first + count
                if processor is None or not processor.is_on_host:
                    continue
                if of_sequence.is_searched:
                    calls = [_call_of_beams(of_sequence, processor, logits_NTV[:, 0])]
                else:
                    calls = _calls_of_positions(of_sequence, processor, logits_NTV[0], drafts[number])
                if processor.processor.is_batched:
                    batches.setdefault(id(processor.processor.function), []).extend(calls)
                else:
                    _call_each(calls, handle)
            for calls in batches.values():
                _call_batched(calls, handle)

    def _ring(self, buf: StepBuffers) -> PinnedRing:
        address = buf.tokens_BT.data_ptr()
        if address not in self._rings:
            self._rings[address] = PinnedRing(self._runtime, buf.tokens_BT)
        return self._rings[address]


def _calls_of_positions(
    rows: HostRows, processor: RequestProcessor, logits_TV: Tensor, drafts: list[int]
) -> list[_Call]:
    """Make one call for each position of a sequence: after the last token, and after each draft up to the first
    missing one."""
    text = [*rows.prompt, *rows.answers[0]]
    request_id = processor.number_for(rows.sequence_id)
    count = next((t for t, draft in enumerate(drafts) if draft < 0), len(drafts))
    return [
        _Call(processor, request_id, logits_TV[None, t : t + 1], [text + drafts[:t]])
        for t in range(count + 1)
    ]


def _call_of_beams(rows: HostRows, processor: RequestProcessor, logits_NV: Tensor) -> _Call:
    """Make one call for all beams. Before the first token there are none yet, so it passes the prompt once for each."""
    request_id = processor.number_for(rows.sequence_id)
    if rows.copies == 1:
        texts = [[*rows.prompt, *answer] for answer in rows.answers]
        return _Call(processor, request_id, logits_NV[None], texts)
    texts = [[*rows.prompt] for _ in range(rows.copies)]
    return _Call(processor, request_id, logits_NV.repeat(rows.copies, 1)[None], texts, logits_NV[0])


def _call_each(calls: list[_Call], stream: StreamHandle) -> None:
    for call in calls:
        try:
            processor = call.processor.processor
            client = processor.client_id
            call.take(processor.function(call.request_id, call.logits_1NV, call.tokens, stream, client))
        except BaseException as error:
            call.processor.failure = failure(call.processor.processor.name, error)
            return


def _call_batched(calls: list[_Call], stream: StreamHandle) -> None:
    try:
        results = calls[0].processor.processor.function(
            [call.request_id for call in calls],
            [call.logits_1NV for call in calls],
            [call.tokens for call in calls],
            stream,
            [call.processor.processor.client_id for call in calls],
        )
        if results is None:
            results = [None] * len(calls)
        if not isinstance(results, abc.Sequence) or len(results) != len(calls):
            raise TypeError(
                f"it returned {_kind_of(results)}; it may return None or a list of {len(calls)} entries"
            )
        for call, result in zip(calls, results, strict=True):
            call.take(result)
    except BaseException as error:
        for call in calls:
            call.processor.failure = failure(call.processor.processor.name, error)


def inner_stream(stream: Stream) -> Stream:
    """The runtime's stream inside a segmented stream, which takes work immediately. Any other stream is returned
    itself."""
    inner: Stream = getattr(stream, "inner", stream)
    return inner


def _kind_of(value: object) -> str:
    """Describe a processor's result for an error message."""
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
