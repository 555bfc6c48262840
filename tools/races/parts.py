"""Runs of single parts: streams, events, rings, segments, decoders, the recorder. They are fast and come before the
runs of whole engines."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from support.grammar.grammars import END, compiled, small_vocabulary
from weft.engine.features import flight_recorder as recorder_module
from weft.engine.features.flight_recorder import FlightRecorder
from weft.errors import RequestError
from weft.grammar import Guide
from weft.guided import CapturableGuidedDecoder, GuidedDecoder, GuidedRequest
from weft.guided.flight import operations
from weft.guided.grammar_stream import GrammarStream
from weft.guided.state import GuidedShape, GuidedState
from weft.runtime import CpuRuntime, cpu
from weft.runtime.buffers import DEPTH, PinnedRing
from weft.runtime.segments import SegmentedStream

VOCAB = small_vocabulary().vocab_size


def ahead() -> Iterator[int]:
    """Run the body with the oldest stream first, then with the newest first."""
    for seed in (0, 1):
        cpu.synchronize()
        cpu.set_schedule("ahead", seed)
        yield seed
    cpu.synchronize()
    cpu.set_schedule("inline")


def streams() -> Iterator[Any]:
    """Each way to make a stream, or the host, wait for a stream."""

    def by_event(a: cpu.Stream, b: cpu.Stream) -> None:
        b.wait_event(a.record_event())

    def by_stream(a: cpu.Stream, b: cpu.Stream) -> None:
        b.wait_stream(a)

    def by_events_own(a: cpu.Stream, b: cpu.Stream) -> None:
        event = cpu.Event()
        event.record(a)
        event.wait(b)

    def by_table(a: cpu.Stream, b: cpu.Stream) -> None:
        event = CpuRuntime().event()
        a.record(event)
        b.wait(event)

    for _ in ahead():
        for order in (by_event, by_stream, by_events_own, by_table):
            for is_older in (True, False):
                one, other = cpu.Stream(), cpu.Stream()
                a, b = (one, other) if is_older else (other, one)
                seen: list[int] = []
                a.launch(seen.append, 1)
                order(a, b)
                b.launch(seen.append, 2)
                b.synchronize()
                yield seen[:]
    for wait in (
        lambda stream: stream.synchronize(),
        lambda stream: stream.record_event().synchronize(),
        lambda stream: cpu.synchronize(),
        lambda stream: CpuRuntime().synchronize(),
    ):
        stream, seen = cpu.Stream(), []
        stream.launch(seen.append, 1)
        wait(stream)
        yield seen[:]


def rings() -> Iterator[Any]:
    """The host is far ahead of the device, and only the ring makes it wait."""
    for _ in ahead():
        runtime = CpuRuntime()
        stream = runtime.stream()
        state, seen = torch.zeros(1, dtype=torch.int64), list[int]()
        into, out = PinnedRing(runtime, state), PinnedRing(runtime, state)
        for i in range(3 * DEPTH):
            into.send(stream, torch.tensor([i]))
            stream.launch(lambda seen=seen, state=state: seen.append(int(state[0])))
        stream.launch(state.fill_, 7)
        yield out.receive(stream).tolist()
        stream.launch(state.fill_, 8)
        yield out.start_receive(stream).wait().tolist(), seen


def segments() -> Iterator[Any]:
    """Collected work is submitted before work that is ordered after it."""
    for _ in ahead():
        runtime = CpuRuntime()
        seen: list[int] = []
        inner, other = runtime.stream(), runtime.stream()
        segmented, event = SegmentedStream(runtime, inner), runtime.event()
        segmented.begin()
        segmented.launch(seen.append, 1)
        segmented.record(event)
        other.wait(event)
        other.launch(seen.append, 2)
        other.record(event)
        segmented.wait(event)
        segmented.launch(seen.append, 3)
        segmented.synchronize()
        yield seen


def publishing() -> Iterator[Any]:
    """A component publishes tensors that torch allocated, so that weft's streams may use them. On a CPU this does
    nothing, so the calls are counted."""
    told: list[str] = []

    class Told(CpuRuntime):
        def publish(self) -> None:
            told.append("published")

    runtime = Told()
    GrammarStream(runtime, GuidedShape(1, 1, VOCAB, [END]))
    yield "grammar", len(told)
    GuidedDecoder(runtime, 1, 1, VOCAB, [END])
    yield "decoder", len(told)
    CapturableGuidedDecoder(runtime, runtime.stream(), 1, 1, VOCAB, [END], batch_size=1)
    yield "captured decoder", len(told)


def decoders() -> Iterator[Any]:
    """Masks stay unchanged until the step has read them. Without a stream of weft's, the decoder waits for torch's."""
    for _ in ahead():
        runtime = CpuRuntime()
        stream = runtime.stream()
        decoder = GuidedDecoder(runtime, 1, 1, VOCAB, [END], stream=stream)
        decoder.add_batch([GuidedRequest(0, compiled(Guide.regex("ab")).matcher())])
        rows = torch.zeros(2, VOCAB)
        decoder.execute(rows[:1])
        decoder.add_batch([GuidedRequest(0, new_token=3 + ord("a"))])
        decoder.execute(rows[1:])
        stream.synchronize()
        yield rows.argmax(1).tolist()
    waits: list[str] = []

    class Waits(CpuRuntime):
        def synchronize(self) -> None:
            waits.append("waited")

    decoder = GuidedDecoder(Waits(), 1, 1, VOCAB, [END])
    decoder.add_batch([GuidedRequest(0, compiled(Guide.regex("ab")).matcher())])
    decoder.execute(torch.zeros(1, VOCAB))
    decoder.add_batch([GuidedRequest(0, new_token=3 + ord("a"))])
    yield waits


def closing() -> Iterator[Any]:
    """A closed grammar stream has no work left."""
    for _ in ahead():
        runtime = CpuRuntime()
        seen: list[int] = []
        grammar = GrammarStream(runtime, GuidedShape(1, 1, VOCAB, [END]))
        grammar.stream.hostfunc(seen.append, 1)
        grammar.close()
        yield seen


def recording() -> Iterator[Any]:
    """A recorder begins, collects the failures of one iteration in a file, and ends."""
    with tempfile.TemporaryDirectory() as directory:
        state = GuidedState(GuidedShape(2, 1, VOCAB, [END]))
        kept, recorder_module.GATHER_S = recorder_module.GATHER_S, 1.5
        recorder = FlightRecorder(state, small_vocabulary(), directory=directory)
        state.push([0], {0: compiled(Guide.regex("ab")).matcher()})
        state.fetch()
        yield len(recorder.recording().operations)
        for number in (1, 2):
            recorder.failed(failing(recorder, number))
            if number == 1:  # long enough for a file, if the recorder failed to wait
                patience = threading.Event()
                for _ in range(10):
                    patience.wait(0.1)
                    if recorder.files:
                        break
        recorder.close()
        recorder_module.GATHER_S = kept
        yield len(recorder.files)
        state.push([0])
        state.fetch()
        yield len(operations(state.recorded()))


def failing(recorder: FlightRecorder, number: int) -> Any:
    """Make a request that the recorder watches."""
    request: Any = SimpleNamespace(
        id=number,
        output=SimpleNamespace(error=RequestError("no"), token_ids=[], finish_reason="error"),
        guide=None,
        sampling=SimpleNamespace(on_length="cut"),
        prompt=[1],
        room=3,
        splices=[],
    )
    recorder.watch(request, 0, None)
    return request


PARTS: list[Callable[[], Iterator[Any]]] = [
    streams,
    rings,
    segments,
    publishing,
    decoders,
    closing,
    recording,
]
