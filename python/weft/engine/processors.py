"""Logits processors: what a caller gives to act on the raw logits of its request, before everything else does.

A host processor is called on the engine's thread between the model's forward and sampling: the iteration waits for
it. One whose function has the attribute `allows_capture` set to True is a device function instead: it follows the rule
of `Stream.launch` and is captured with the iteration. Either sees every position that is verified; penalties, bias and
the grammar's mask act on what it leaves. One that raises ends the requests that named it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.engine.state import SlotState, StepBuffers
from weft.errors import CapacityError, InputError, RequestError
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream

if TYPE_CHECKING:
    from weft.engine.lifecycle import Request

MAX_CAPTURED = 8
"""Processors that are captured and in use at a time: graphs are kept for each set of them."""

HostWork = Callable[[Stream, StepBuffers], None]
"""What the host does to an iteration's logits between its launches."""


@dataclass(frozen=True, eq=False)
class LogitsProcessor:
    """A request's logits processor; `name` is how errors call it. T positions are verified, V is the vocabulary.

    On the host, `function(request_id, logits, tokens, stream, client_id)` is called for each position: `logits` is
    [1, 1, V] on the device, in the model's dtype, to be changed in place, unless the function returns a tensor of V
    values to be taken instead; `tokens` is a list of one list, the text before the position. What the function gives
    to the device must follow `stream`, a `StreamHandle`, which is torch's current stream on CUDA; what is before it
    there is done.

    With `is_batched`, `function(request_ids, logits, tokens, stream, client_ids)` takes lists, with an entry for each
    position of all requests of the iteration that have the same function; it returns None, or a list of the same
    length, each entry None or a tensor.

    A function with `allows_capture` is called as `function(rows, logits_BTV, stream)` with `ProcessorRows`.

    `request_id` is what the function is told (None: the engine's own number).
    """

    name: str
    function: Callable[..., Any]
    is_batched: bool = False
    request_id: int | None = None
    client_id: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"logits processor {self.name!r} is {self.function!r}; it must be a callable")

    @property
    def allows_capture(self) -> bool:
        """Whether the function is a device function."""
        return getattr(self.function, "allows_capture", False) is True


@dataclass(frozen=True)
class ProcessorRows:
    """The rows of an iteration, on the device, as a captured processor sees them.

    `active` [B] bool: the rows whose requests have this processor; the others are somebody else's, or only pad, and
    what is done to them is dropped. `slots` [B] int64 and `request_ids` [B] int64: a slot is one request's until
    another id shows up there, so state may be kept by slot. `tokens` [B, T] int64: the last token of the text, then the
    drafts (-1: none, and none behind it). `lengths` [B] int64: tokens of the text, up to that last one. Row b's
    position t follows a text of lengths[b] + t tokens that ends with tokens[b, t].
    """

    active: Tensor
    slots: Tensor
    request_ids: Tensor
    tokens: Tensor
    lengths: Tensor


@dataclass(eq=False)
class CapturedProcessor:
    """A device function in use: `number` marks its slots on the device, `users` requests have it. `failure` is what it
    raised."""

    name: str
    function: Callable[..., Any]
    number: int
    users: int = 0
    failure: BaseException | None = field(default=None, repr=False)


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
                    f"it returned {_kind(result)}; it may return None or a tensor {list(logits_BTV.shape)}"
                )
            logits_BTV = result.to(logits_BTV.dtype)
    except BaseException as error:  # also what would end a thread: it is the engine's
        processor.failure = error
        return
    buf.logits_BTV.copy_(torch.where(active_B[:, None, None], logits_BTV, buf.logits_BTV))


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
class _Position:
    """One call of a host processor."""

    request: Request
    processor: LogitsProcessor
    logits_11V: Tensor
    tokens: list[int]

    def take(self, result: object) -> None:
        """Take what the function returned for the logits."""
        if result is None or result is self.logits_11V:
            return
        if not isinstance(result, Tensor) or result.numel() != self.logits_11V.numel():
            raise TypeError(
                f"it returned {_kind(result)}; it may return None or a tensor of {self.logits_11V.numel()} values"
            )
        self.logits_11V.copy_(result.reshape(self.logits_11V.shape))


class HostProcessors:
    """Calls host processors between the launches of an iteration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rings: dict[int, PinnedRing] = {}

    def apply(self, stream: Stream, buf: StepBuffers, requests: Sequence[Request]) -> None:
        """Wait for the forward, then call the processors of `requests`, the batch's rows in order. What one raises is
        its requests' `failure`."""
        # Also for no request: every round of a split iteration has the same parts.
        drafts = self._ring(buf).receive(stream)[:, 1:].tolist()
        inner = inner_stream(stream)
        handle = StreamHandle.of(inner)
        batches: dict[int, list[_Position]] = {}
        with self._runtime.use(inner):
            for row, request in enumerate(requests):
                processor = request.processor
                unread = request.row is not None and request.row.error is not None
                if processor is None or request.captured is not None or unread:
                    continue
                positions = _positions(request, processor, buf.logits_BTV[row], drafts[row])
                if processor.is_batched:
                    batches.setdefault(id(processor.function), []).extend(positions)
                else:
                    _call_each(positions, handle)
            for positions in batches.values():
                _call_batched(positions, handle)

    def _ring(self, buf: StepBuffers) -> PinnedRing:
        address = buf.tokens_BT.data_ptr()
        if address not in self._rings:
            self._rings[address] = PinnedRing(self._runtime, buf.tokens_BT)
        return self._rings[address]


def _positions(
    request: Request, processor: LogitsProcessor, logits_TV: Tensor, drafts: list[int]
) -> list[_Position]:
    """The positions of a row up to the first draft that is none."""
    text = request.prompt + request.output.token_ids
    count = next((t for t, draft in enumerate(drafts) if draft < 0), len(drafts))
    return [
        _Position(request, processor, logits_TV[None, t : t + 1], text + drafts[:t]) for t in range(count + 1)
    ]


def _call_each(positions: list[_Position], stream: StreamHandle) -> None:
    for p in positions:
        try:
            p.take(
                p.processor.function(
                    request_id(p.request), p.logits_11V, [p.tokens], stream, p.processor.client_id
                )
            )
        except BaseException as error:
            p.request.failure = failure(p.processor.name, error)
            return


def _call_batched(positions: list[_Position], stream: StreamHandle) -> None:
    try:
        results = positions[0].processor.function(
            [request_id(p.request) for p in positions],
            [p.logits_11V for p in positions],
            [[p.tokens] for p in positions],
            stream,
            [p.processor.client_id for p in positions],
        )
        if results is None:
            return
        if not isinstance(results, Sequence) or len(results) != len(positions):
            raise TypeError(
                f"it returned {_kind(results)}; it may return None or a list of {len(positions)} entries"
            )
        for p, result in zip(positions, results, strict=True):
            p.take(result)
    except BaseException as error:
        for p in positions:
            p.request.failure = failure(p.processor.name, error)


def failure(name: str, error: BaseException) -> RequestError:
    """What ends a request whose processor raised."""
    found = RequestError(f"logits processor {name!r} raised {type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def check_processors(request: Request) -> None:
    """Raise what the request's processor raised."""
    if request.failure is not None:
        raise request.failure
    if request.captured is not None and request.captured.failure is not None:
        raise failure(request.captured.name, request.captured.failure)


def request_id(request: Request) -> int:
    """What the request's processor is told as its id."""
    own = request.processor.request_id if request.processor is not None else None
    return request.id if own is None else own


def inner_stream(stream: Stream) -> Stream:
    """The stream of the runtime beneath: it takes work at once."""
    inner: Stream = getattr(stream, "inner", stream)
    return inner


def _kind(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
