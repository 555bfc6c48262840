"""CUDA graphs of `decode_step`, one for each kind of iteration in use (`Plan`).

A capture calls `decode_step` (`step.py`) unchanged while its streams capture. The setting `graphs` chooses a mode:

- "one": the whole iteration is one graph. Only an iteration with host logits processors is split, around their call.
- "split": each iteration calls `decode_step`, and the launches between two grammar tasks form a graph.
- "none": each iteration calls `decode_step` eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from weft.config import Graphs
from weft.engine.device.state import ContextInputs, DecodeParts, StepBuffers
from weft.engine.features.processors import (
    CapturedProcessor,
    HostProcessors,
    HostRows,
    failure,
)
from weft.engine.runner.prompts import PromptPart, write_inputs
from weft.engine.runner.step import Iteration, Plan, decode_step
from weft.guided.grammar_stream import GrammarStream
from weft.runtime.buffers import PinnedRing
from weft.runtime.dump import GraphDump, dump_graph
from weft.runtime.interface import Graph, Runtime, Stream
from weft.runtime.segments import SegmentedStream


class StepGraphs:
    """Captures a plan's graph on first use, then replays it. `ready` has the plans that need no further preparation;
    `num_captures` counts captures, and `num_launched` launches of graphs that are a whole iteration. An iteration reads
    at most `max_parts` parts of prompts."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        grammar_stream: GrammarStream,
        parts: DecodeParts,
        graphs: Graphs,
        max_parts: int,
    ) -> None:
        self.max_parts = max_parts
        self._runtime, self._stream = runtime, stream
        self._grammar_stream, self._parts = grammar_stream, parts
        self._mode = graphs
        self.ready: set[Plan] = set()
        self._host = HostProcessors(runtime)
        self.num_launched = self.num_captures = 0
        self._slots: dict[int, PinnedRing] = {}  # by batch size: the ring that sends `slots_B`
        self._sent: dict[int, list[int]] = {}  # by batch size: the slots sent last
        self._inputs: dict[tuple[int, int, int], PinnedRing] = {}  # by key of buffers, for plans with context
        self._buffers: dict[tuple[int, int, int], StepBuffers] = {}
        self._graphs: dict[Plan, Graph] = {}
        self._segments: dict[Plan, SegmentedStream] = {}

    @property
    def num_replays(self) -> int:
        """The number of graphs launched so far."""
        return self.num_launched + sum(segments.num_replays for segments in self._segments.values())

    def buffers(self, plan: Plan) -> StepBuffers:
        """The fixed buffers of a plan's iterations. Plans of one batch size without context share `slots_B`."""
        key = (plan.batch, plan.num_drafts, plan.num_context)
        if key not in self._buffers:
            parts = self._parts
            if plan.num_context:
                base = self.buffers(replace(plan, num_context=0))
                buffers = base.with_context(plan.num_context, self.max_parts, parts)
                assert buffers.inputs is not None
                self._inputs[key] = PinnedRing(self._runtime, buffers.inputs.data)
            else:
                if plan.batch not in self._slots:
                    slots_B = torch.full_like(parts.state.length[:1], parts.state.dummy).repeat(plan.batch)
                    self._slots[plan.batch] = PinnedRing(self._runtime, slots_B)
                buffers = StepBuffers.allocate(
                    self._slots[plan.batch].device_tensor,
                    plan.num_drafts + 1,
                    parts.model,
                    parts.state,
                    parts.drafter,
                    parts.kv.states,
                )
            self._buffers[key] = buffers
            self._runtime.publish()
        return self._buffers[key]

    @property
    def plans(self) -> list[Plan]:
        """The plans whose graphs are captured."""
        return [*self._graphs, *self._segments]

    def is_ready(self, plan: Plan) -> bool:
        """Whether an iteration can run without capturing first."""
        return self._mode == "none" or plan in self.ready

    def send(self, plan: Plan, slots: list[int], context: Sequence[PromptPart] = ()) -> None:
        """Send the inputs of the next iteration to the device: the slots of its sampling rows, and the parts of prompts
        that it reads. The remaining rows are padding."""
        if plan.num_context:
            of_device = self.buffers(plan).inputs
            assert of_device is not None
            inputs = ContextInputs.on_host(of_device.sizes)
            write_inputs(inputs, slots, context, plan.num_drafts + 1, self._parts.state.dummy)
            ring = self._inputs[plan.batch, plan.num_drafts, plan.num_context]
            ring.send(self._stream, torch.from_numpy(inputs.data))
            return
        padded = slots + [self._parts.state.dummy] * (plan.batch - len(slots))
        self.buffers(plan)
        if self._sent.get(plan.batch) != padded:
            self._slots[plan.batch].send(self._stream, torch.tensor(padded))
            self._sent[plan.batch] = padded

    def prepare(self, plan: Plan) -> None:
        """Warm up a plan and capture it. The engine must be idle: the warm-up runs an iteration of padding rows, and
        takes an empty snapshot of its own.

        If this fails and the plan has captured processors, the failure goes to those that raised, or to all of them if
        none raised.
        """
        if plan in self.ready:
            return
        self.send(plan, [])
        try:
            if self._mode != "none":
                self._capture(plan)
            self.ready.add(plan)
        except Exception as error:
            captured = plan.processors.captured
            if not captured:
                raise
            # A processor's exception may have invalidated the capture. Then `error` comes from a later call, and the
            # cause is the processor's own failure.
            broken = [processor for processor in captured if processor.failure is not None]
            first = broken[0].failure if broken else error
            assert first is not None
            for processor in broken or captured:
                processor.failure = processor.failure or first
            names = ", ".join(processor.name for processor in broken or captured)
            raise failure(names, first) from first

    def _capture(self, plan: Plan) -> None:
        self.num_captures += 1
        takes_snapshot = plan.guided_logits or self._parts.has_proposals
        if self._is_split(plan):
            segments = SegmentedStream(self._runtime, self._stream)
            try:
                for _ in range(2):
                    if takes_snapshot:
                        self._grammar_stream.push([], {})
                    self._run_segments(plan, segments)
                self._stream.synchronize()
            except BaseException:
                segments.close()  # or its graphs and the exception would keep each other alive
                raise
            segments.num_replays = 0
            self._segments[plan] = segments
            return
        if takes_snapshot:
            self._grammar_stream.push([], {})
        iteration = self._iteration(plan, self._stream)
        decode_step(iteration)
        self._stream.synchronize()
        with self._runtime.capture(self._stream) as graph:
            decode_step(iteration)
        self._graphs[plan] = graph

    def run(self, plan: Plan, rows: Sequence[HostRows] = ()) -> None:
        """Issue one iteration over the slots that were sent last. It also calls the host processors of `rows`, and
        stores their exceptions in `RequestProcessor.failure`."""
        if self._mode == "none":
            decode_step(self._iteration(plan, self._stream, rows))
        elif self._is_split(plan):
            self._run_segments(plan, self._segments[plan], rows)
        else:
            self._graphs[plan].replay()
            self.num_launched += 1

    def graph(self, plan: Plan) -> Graph | None:
        """The graph of a plan whose iteration is one captured graph; None for other plans."""
        return self._graphs.get(plan)

    def close_graphs_of(self, processor: CapturedProcessor) -> None:
        """Close the graphs that captured a processor."""
        for plan in [plan for plan in self.ready if processor in plan.processors.captured]:
            self.ready.remove(plan)
            if plan in self._segments:
                self.num_launched += self._segments[plan].num_replays
                self._segments.pop(plan).close()
            elif plan in self._graphs:
                self._graphs.pop(plan).close()

    def close(self) -> None:
        """Close every graph."""
        for graph in self._graphs.values():
            graph.close()
        for segments in self._segments.values():
            segments.close()
        self._graphs.clear()
        self._segments.clear()
        self.ready.clear()

    def dump(self, plan: Plan) -> GraphDump:
        """Capture an iteration again and return its nodes and edges."""
        self.prepare(plan)
        iteration = self._iteration(plan, self._stream)
        return dump_graph(self._runtime, self._stream, lambda: decode_step(iteration))

    def _is_split(self, plan: Plan) -> bool:
        return self._mode == "split" or (self._mode == "one" and plan.processors.on_host)

    def _run_segments(self, plan: Plan, segments: SegmentedStream, rows: Sequence[HostRows] = ()) -> None:
        segments.begin()
        decode_step(self._iteration(plan, segments, rows))
        segments.flush()

    def _iteration(self, plan: Plan, stream: Stream, rows: Sequence[HostRows] = ()) -> Iteration:
        host = partial(self._host.apply, rows=rows)
        return Iteration(plan, stream, self._grammar_stream, self._parts, self.buffers(plan), host)
