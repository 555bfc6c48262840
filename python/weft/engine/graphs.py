"""Graphs of `decode_step`, one for each kind of iteration in use.

Capture is a wrapper: it calls the function of `step.py` while its streams capture. With `graphs="none"` the same
function is called for every iteration; with `"split"` it is, too, and what it launches between two calls of the
grammar's is a graph.
"""

from __future__ import annotations

from weft.config import Graphs
from weft.engine.state import DecodeParts, StepBuffers
from weft.engine.step import Iteration, Plan, decode_step
from weft.guided.host_lane import HostLane
from weft.guided.lane import GrammarLane
from weft.runtime.dump import GraphDump, dump_graph
from weft.runtime.interface import Graph, Runtime, Stream
from weft.runtime.segments import SegmentedStream


def bucket(rows: int, max_batch: int) -> int:
    """The smallest batch size of a graph that holds `rows`: a power of two, or `max_batch`."""
    return min(1 << (rows - 1).bit_length(), max_batch)


class StepGraphs:
    """Captures on first use, then replays."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        lane: GrammarLane | HostLane,
        parts: DecodeParts,
        graphs: Graphs,
    ) -> None:
        self._runtime, self._stream, self._lane, self._parts = runtime, stream, lane, parts
        self._mode = graphs
        self._num_replays = 0
        self._slots: dict[int, StepBuffers] = {}
        self._buffers: dict[tuple[int, int, bool], StepBuffers] = {}
        self._graphs: dict[Plan, Graph] = {}
        self._segments: dict[Plan, SegmentedStream] = {}

    @property
    def num_replays(self) -> int:
        """Graphs launched so far."""
        return self._num_replays + sum(segments.num_replays for segments in self._segments.values())

    def buffers(self, plan: Plan) -> StepBuffers:
        """The fixed buffers of an iteration; `slots_B` is shared by all of one batch size."""
        key = (plan.batch, plan.num_drafts, plan.logprobs)
        if key not in self._buffers:
            parts = self._parts
            shared = self._slots.get(plan.batch)
            self._buffers[key] = StepBuffers.allocate(
                plan.batch,
                plan.num_drafts + 1,
                parts.model,
                parts.state,
                parts.drafter,
                keeps_raw_logits=plan.logprobs,
                slots_B=shared.slots_B if shared is not None else None,
            )
            self._slots.setdefault(plan.batch, self._buffers[key])
        return self._buffers[key]

    def is_ready(self, plan: Plan) -> bool:
        """Whether an iteration of this kind runs without a capture first."""
        return self._mode == "none" or plan in self._graphs or plan in self._segments

    def prepare(self, plan: Plan) -> None:
        """Warm up and capture. Needs an idle engine: the warm-up runs rows that only pad, under an empty snapshot."""
        if self.is_ready(plan):
            return
        self._stream.launch(self.buffers(plan).slots_B.fill_, self._parts.state.dummy)
        if self._mode == "split":
            self._segments[plan] = SegmentedStream(self._runtime, self._stream)
            for _ in range(2):
                self._lane.push([], {})
                self._run_segments(plan)
            self._segments[plan].num_replays = 0
            self._stream.synchronize()
            return
        if plan.guided or self._parts.has_proposals:
            self._lane.push([], {})
        iteration = self._iteration(plan, self._stream)
        decode_step(iteration)
        self._stream.synchronize()
        with self._runtime.capture(self._stream) as graph:
            decode_step(iteration)
        self._graphs[plan] = graph

    def run(self, plan: Plan) -> None:
        """Issue one iteration."""
        if self._mode == "none":
            decode_step(self._iteration(plan, self._stream))
        elif self._mode == "split":
            self._run_segments(plan)
        else:
            self._graphs[plan].replay()
            self._num_replays += 1

    def close(self) -> None:
        """Let go of every graph."""
        for graph in self._graphs.values():
            graph.close()
        for segments in self._segments.values():
            segments.close()
        self._graphs.clear()
        self._segments.clear()

    def dump(self, plan: Plan) -> GraphDump:
        """The nodes and edges of this kind of iteration, captured afresh."""
        self.prepare(plan)
        iteration = self._iteration(plan, self._stream)
        return dump_graph(self._runtime, self._stream, lambda: decode_step(iteration))

    def _run_segments(self, plan: Plan) -> None:
        segments = self._segments[plan]
        segments.begin()
        decode_step(self._iteration(plan, segments))
        segments.flush()

    def _iteration(self, plan: Plan, stream: Stream | SegmentedStream) -> Iteration:
        return Iteration(plan, stream, self._lane, self._parts, self.buffers(plan))
