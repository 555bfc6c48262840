"""Graphs of `decode_step`, one for each batch size and kind of iteration in use.

Capture is a wrapper: it calls the function of `step.py` while its streams capture. With `capture=False` the same
function is called for every iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.engine.state import DecodeParts, StepBuffers
from weft.engine.step import Iteration, decode_step
from weft.guided.lane import GrammarLane
from weft.runtime.dump import GraphDump, dump_graph
from weft.runtime.interface import Graph, Runtime, Stream


@dataclass(frozen=True)
class GraphKey:
    """What distinguishes graphs: `batch` rows (a bucket), and whether masks are part of it."""

    batch: int
    guided: bool


def bucket(rows: int, max_batch: int) -> int:
    """The smallest batch size of a graph that holds `rows`: a power of two, or `max_batch`."""
    return min(1 << (rows - 1).bit_length(), max_batch)


class StepGraphs:
    """Captures on first use, then replays."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        lane: GrammarLane,
        parts: DecodeParts,
        guided_drafts: bool,
        capture: bool,
    ) -> None:
        self.num_replays = 0
        self._runtime, self._stream, self._lane, self._parts = runtime, stream, lane, parts
        self._guided_drafts = guided_drafts
        self._capture = capture
        self._buffers: dict[int, StepBuffers] = {}
        self._graphs: dict[GraphKey, Graph] = {}

    def buffers(self, batch: int) -> StepBuffers:
        """The fixed buffers of iterations of `batch` rows, shared by every graph of that size."""
        if batch not in self._buffers:
            parts = self._parts
            self._buffers[batch] = StepBuffers.allocate(
                batch, parts.num_drafts + 1, parts.model, parts.state, parts.drafter
            )
        return self._buffers[batch]

    def is_ready(self, key: GraphKey) -> bool:
        """Whether an iteration of this kind runs without a capture first."""
        return not self._capture or key in self._graphs

    def prepare(self, key: GraphKey) -> None:
        """Warm up and capture. Needs an idle engine: the warm-up runs rows that only pad, under an empty snapshot."""
        if self.is_ready(key):
            return
        iteration = self._iteration(key)
        buffers = iteration.buffers
        dummy = self._parts.state.dummy
        self._stream.launch(buffers.slots_B.fill_, dummy)
        if key.guided:
            self._lane.push([], {})
        decode_step(iteration)
        self._stream.synchronize()
        with self._runtime.capture(self._stream) as graph:
            decode_step(iteration)
        self._graphs[key] = graph

    def run(self, key: GraphKey) -> None:
        """Issue one iteration."""
        if self._capture:
            self._graphs[key].replay()
            self.num_replays += 1
        else:
            decode_step(self._iteration(key))

    def close(self) -> None:
        """Let go of every graph."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()

    def dump(self, key: GraphKey) -> GraphDump:
        """The nodes and edges of this kind of iteration, captured afresh."""
        self.prepare(key)
        return dump_graph(self._runtime, self._stream, lambda: decode_step(self._iteration(key)))

    def _iteration(self, key: GraphKey) -> Iteration:
        return Iteration(
            stream=self._stream,
            lane=self._lane,
            parts=self._parts,
            buffers=self.buffers(key.batch),
            guided=key.guided,
            guided_drafts=key.guided and self._guided_drafts,
        )
