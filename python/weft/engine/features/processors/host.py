"""Logits processors on the host: called between the model's forward and sampling, while the iteration waits."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from weft.engine.device.state import StepBuffers
from weft.engine.features.logits_processors import RequestProcessor, failure, kind_of
from weft.engine.sequence import Sequence
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
class HostRows:
    """A request's rows in an iteration: `answers` so far, one for each. Its row is shown `copies` times, where that is
    the one prompt of as many beams."""

    sequence: Sequence
    answers: abc.Sequence[abc.Sequence[int]]
    copies: int = 1


@dataclass(frozen=True)
class _Call:
    """One call of a host processor: logits [1, N, V] after N texts, which are beams, or one text. What it leaves of
    the first goes to `target` [V], where that is not the same memory."""

    sequence: Sequence
    own: RequestProcessor
    logits_1NV: Tensor
    tokens: list[list[int]]
    target: Tensor | None = None

    @property
    def request_id(self) -> int:
        """What the function is told as the request's id."""
        return self.own.number_for(self.sequence.id)

    def take(self, result: object) -> None:
        """Take what the function returned for the logits."""
        if result is not None and result is not self.logits_1NV:
            if not isinstance(result, Tensor) or result.numel() != self.logits_1NV.numel():
                raise TypeError(
                    f"it returned {kind_of(result)}; it may return None or a tensor of {self.logits_1NV.numel()} values"
                )
            self.logits_1NV.copy_(result.reshape(self.logits_1NV.shape))
        if self.target is not None:
            self.target.copy_(self.logits_1NV[0, 0])


class HostProcessors:
    """Calls host processors between the launches of an iteration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rings: dict[int, PinnedRing] = {}

    def apply(
        self,
        stream: Stream,
        buf: StepBuffers,
        rows: abc.Sequence[HostRows],
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
        batches: dict[int, list[_Call]] = {}
        first = 0
        with self._runtime.use(inner):
            for each in rows:
                own, count = each.sequence.processor, len(each.answers)
                logits_NTV = buf.logits_BTV[first : first + count]
                number, first = first, first + count
                if own is None or not own.is_on_host:
                    continue
                if each.sequence.request.beam is not None:
                    calls = [_call_of_beams(each, own, logits_NTV[:, 0])]
                else:
                    calls = _positions(each, own, logits_NTV[0], drafts[number])
                if own.processor.is_batched:
                    batches.setdefault(id(own.processor.function), []).extend(calls)
                else:
                    _call_each(calls, handle)
            for calls in batches.values():
                _call_batched(calls, handle)

    def _ring(self, buf: StepBuffers) -> PinnedRing:
        address = buf.tokens_BT.data_ptr()
        if address not in self._rings:
            self._rings[address] = PinnedRing(self._runtime, buf.tokens_BT)
        return self._rings[address]


def _positions(row: HostRows, own: RequestProcessor, logits_TV: Tensor, drafts: list[int]) -> list[_Call]:
    """The positions of a row up to the first draft that is none."""
    text = [*row.sequence.prompt, *row.answers[0]]
    count = next((t for t, draft in enumerate(drafts) if draft < 0), len(drafts))
    return [
        _Call(row.sequence, own, logits_TV[None, t : t + 1], [text + drafts[:t]]) for t in range(count + 1)
    ]


def _call_of_beams(rows: HostRows, own: RequestProcessor, logits_NV: Tensor) -> _Call:
    """All beams of a request at once; before they part, as many times the prompt as there will be."""
    prompt = rows.sequence.prompt
    if rows.copies == 1:
        return _Call(rows.sequence, own, logits_NV[None], [[*prompt, *answer] for answer in rows.answers])
    tokens = [[*prompt] for _ in range(rows.copies)]
    return _Call(rows.sequence, own, logits_NV.repeat(rows.copies, 1)[None], tokens, logits_NV[0])


def _call_each(calls: list[_Call], stream: StreamHandle) -> None:
    for call in calls:
        try:
            processor = call.own.processor
            client = processor.client_id
            call.take(processor.function(call.request_id, call.logits_1NV, call.tokens, stream, client))
        except BaseException as error:
            call.own.failure = failure(call.own.processor.name, error)
            return


def _call_batched(calls: list[_Call], stream: StreamHandle) -> None:
    try:
        results = calls[0].own.processor.function(
            [call.request_id for call in calls],
            [call.logits_1NV for call in calls],
            [call.tokens for call in calls],
            stream,
            [call.own.processor.client_id for call in calls],
        )
        if results is None:
            results = [None] * len(calls)
        if not isinstance(results, abc.Sequence) or len(results) != len(calls):
            raise TypeError(
                f"it returned {kind_of(results)}; it may return None or a list of {len(calls)} entries"
            )
        for call, result in zip(calls, results, strict=True):
            call.take(result)
    except BaseException as error:
        for call in calls:
            call.own.failure = failure(call.own.processor.name, error)


def inner_stream(stream: Stream) -> Stream:
    """The stream of the runtime beneath: it takes work at once."""
    inner: Stream = getattr(stream, "inner", stream)
    return inner
