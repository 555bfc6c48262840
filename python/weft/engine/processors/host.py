"""Logits processors on the host: called between the model's forward and sampling, while the iteration waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from weft.engine.device.state import StepBuffers
from weft.engine.logits_processors import RequestProcessor, failure, kind_of
from weft.engine.request import Request
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream

HostWork = Callable[[Stream, StepBuffers], None]
"""What the host does to an iteration's logits between its launches."""


class StreamHandle(int):
    """A stream's raw handle, for any library: on CUDA `torch.cuda.ExternalStream` takes it as the number it is, others
    by `__cuda_stream__`, which gives (0, handle). `stream` is the runtime's own."""

    stream: Stream

    @classmethod
    def of(cls, stream: Stream) -> StreamHandle:
        """The handle of a runtime's stream."""
        handle = cls(stream.handle)
        handle.stream = stream
        return handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self)


@dataclass(frozen=True)
class HostRow:
    """A row of an iteration, of `request`, whose answer so far is `answer`."""

    request: Request
    answer: Sequence[int]


@dataclass(frozen=True)
class _Position:
    """One call of a host processor."""

    request: Request
    own: RequestProcessor
    logits_11V: Tensor
    tokens: list[int]

    @property
    def request_id(self) -> int:
        """What the function is told as the request's id."""
        return self.own.number_for(self.request.id)

    def take(self, result: object) -> None:
        """Take what the function returned for the logits."""
        if result is None or result is self.logits_11V:
            return
        if not isinstance(result, Tensor) or result.numel() != self.logits_11V.numel():
            raise TypeError(
                f"it returned {kind_of(result)}; it may return None or a tensor of {self.logits_11V.numel()} values"
            )
        self.logits_11V.copy_(result.reshape(self.logits_11V.shape))


class HostProcessors:
    """Calls host processors between the launches of an iteration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rings: dict[int, PinnedRing] = {}

    def apply(
        self,
        stream: Stream,
        buf: StepBuffers,
        rows: Sequence[HostRow],
        failed: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for the forward, then call the processors of `rows`, in their order, unless the forward has `failed`.
        What one raises is its requests' `failure`."""
        # Also for no request: every round of a split iteration has the same parts.
        drafts = self._ring(buf).receive(stream)[:, 1:].tolist()
        if failed() is not None:
            return
        inner = inner_stream(stream)
        handle = StreamHandle.of(inner)
        batches: dict[int, list[_Position]] = {}
        with self._runtime.use(inner):
            for number, row in enumerate(rows):
                own = row.request.processor
                if own is None or not own.is_on_host:
                    continue
                positions = _positions(row, own, buf.logits_BTV[number], drafts[number])
                if own.processor.is_batched:
                    batches.setdefault(id(own.processor.function), []).extend(positions)
                else:
                    _call_each(positions, handle)
            for positions in batches.values():
                _call_batched(positions, handle)

    def _ring(self, buf: StepBuffers) -> PinnedRing:
        address = buf.tokens_BT.data_ptr()
        if address not in self._rings:
            self._rings[address] = PinnedRing(self._runtime, buf.tokens_BT)
        return self._rings[address]


def _positions(row: HostRow, own: RequestProcessor, logits_TV: Tensor, drafts: list[int]) -> list[_Position]:
    """The positions of a row up to the first draft that is none."""
    text = [*row.request.prompt, *row.answer]
    count = next((t for t, draft in enumerate(drafts) if draft < 0), len(drafts))
    return [
        _Position(row.request, own, logits_TV[None, t : t + 1], text + drafts[:t]) for t in range(count + 1)
    ]


def _call_each(positions: list[_Position], stream: StreamHandle) -> None:
    for p in positions:
        try:
            processor = p.own.processor
            client = processor.client_id
            p.take(processor.function(p.request_id, p.logits_11V, [p.tokens], stream, client))
        except BaseException as error:
            p.own.failure = failure(p.own.processor.name, error)
            return


def _call_batched(positions: list[_Position], stream: StreamHandle) -> None:
    try:
        results = positions[0].own.processor.function(
            [p.request_id for p in positions],
            [p.logits_11V for p in positions],
            [[p.tokens] for p in positions],
            stream,
            [p.own.processor.client_id for p in positions],
        )
        if results is None:
            return
        if not isinstance(results, Sequence) or len(results) != len(positions):
            raise TypeError(
                f"it returned {kind_of(results)}; it may return None or a list of {len(positions)} entries"
            )
        for p, result in zip(positions, results, strict=True):
            p.take(result)
    except BaseException as error:
        for p in positions:
            p.own.failure = failure(p.own.processor.name, error)


def inner_stream(stream: Stream) -> Stream:
    """The stream of the runtime beneath: it takes work at once."""
    inner: Stream = getattr(stream, "inner", stream)
    return inner
