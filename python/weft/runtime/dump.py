"""Lists the nodes and edges of a captured graph. On CUDA this needs cuda-python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from weft import _core
from weft.core.extras import install_hint
from weft.errors import DriverError, GraphError, InterfaceError
from weft.runtime.cpu import CpuRuntime, CUDAGraph, Stream
from weft.runtime.cuda import CudaRuntime, CudaStream, capture_kept
from weft.runtime.current import CPU, context
from weft.runtime.interface import Runtime
from weft.runtime.interface import Stream as AnyStream
from weft.runtime.recorder import PYTHON


@dataclass(frozen=True)
class GraphDump:
    """Nodes as (kind, label), and edges as pairs of node numbers: the first runs before the second.

    On the CPU, device work is of kind "python" if it calls Python when it runs, else of kind "kernel".
    """

    nodes: list[tuple[str, str]]
    edges: list[tuple[int, int]]


def dump_graph(runtime: Runtime, stream: AnyStream, issue: Callable[[], None]) -> GraphDump:
    """Capture the work that `issue` gives to `stream`, list the graph and free it.

    Raises `InterfaceError` on CUDA if cuda-python is not installed.
    """
    if isinstance(runtime, CudaRuntime):
        assert isinstance(stream, CudaStream)
        return _dump_cuda(stream, issue)
    assert isinstance(runtime, CpuRuntime)
    assert isinstance(stream, Stream)
    return _dump_cpu(stream, issue)


def _dump_cpu(stream: Stream, issue: Callable[[], None]) -> GraphDump:
    captured = CUDAGraph()
    with context(CPU, stream.handle):
        captured.capture_begin(capture_error_mode="thread_local")
        try:
            issue()
        except BaseException:
            _end_quietly(captured)
            raise
        graph = captured.end_capture()
    try:
        nodes = _core.graph_nodes(CPU, graph)
        edges = _core.graph_edges(CPU, graph)
    finally:
        _core.graph_destroy(CPU, graph)
    described = [
        ("python", label.removeprefix(PYTHON)) if label.startswith(PYTHON) else (kind, label)
        for _, kind, label in nodes
    ]
    return _numbered([node for node, _, _ in nodes], described, edges)


def _end_quietly(captured: CUDAGraph) -> None:
    """End a capture that an exception interrupted."""
    # The caller raises that exception; an error from ending the capture would hide it.
    with suppress(GraphError):
        _core.graph_destroy(CPU, captured.end_capture())


def _dump_cuda(stream: CudaStream, issue: Callable[[], None]) -> GraphDump:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise InterfaceError(f"listing a CUDA graph needs cuda-bindings: {install_hint('cuda')}") from error
    graph = capture_kept(stream, issue)
    raw = driver.CUgraph(graph.raw_cuda_graph())
    count = _call(driver.cuGraphGetNodes(raw, 0))[-1]
    nodes = _call(driver.cuGraphGetNodes(raw, count))[0]
    described = [(_kind(driver, node), _kernel_name(driver, node)) for node in nodes]
    dump = _numbered([int(node) for node in nodes], described, _edges(driver, raw, room=2 * count + 1))
    graph.reset()
    return dump


def _edges(driver: Any, graph: Any, room: int) -> list[tuple[int, int]]:
    """The edges as pairs of node handles. `room` is the size of the driver's result array; it doubles until it exceeds
    the number of edges."""
    # v2 also returns the edges' data. Without it the driver refuses a graph with programmatic dependent launches.
    # From CUDA 13 on, the plain name is that version.
    ask = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    befores, afters, *_, count = _call(ask(graph, room))
    if count >= room:  # there may be more
        return _edges(driver, graph, 2 * room)
    return [(int(a), int(b)) for a, b in zip(befores[:count], afters[:count], strict=True)]


def _call(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a cuda-python call; raises its error as `DriverError`."""
    if int(result[0]) != 0:
        raise DriverError(f"cuda-python: {result[0]}", str(result[0]), int(result[0]))
    return result[1:]


def _kind(driver: Any, node: Any) -> str:
    kind: str = _call(driver.cuGraphNodeGetType(node))[0].name
    return kind.removeprefix("CU_GRAPH_NODE_TYPE_").lower()


def _kernel_name(driver: Any, node: Any) -> str:
    """The kernel's name, "" for other nodes."""
    if _kind(driver, node) != "kernel":
        return ""
    error, params = driver.cuGraphKernelNodeGetParams(node)
    if int(error) != 0 or not int(params.func):
        return ""
    error, name = driver.cuFuncGetName(params.func)
    return name.decode() if int(error) == 0 else ""


def _numbered(
    handles: Sequence[int], nodes: list[tuple[str, str]], edges: Sequence[tuple[int, int]]
) -> GraphDump:
    numbers = {handle: number for number, handle in enumerate(handles)}
    return GraphDump(nodes, sorted((numbers[a], numbers[b]) for a, b in edges))
