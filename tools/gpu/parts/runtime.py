"""Checks the runtime on the device: calls on other threads, the cost of a graph's links, whether replays block each
other, captures that fail, and whether chains by programmatic launch always give the same bits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from answers import DEVICE, ON_GPU, answers

import weft
from weft import _core
from weft.errors import WeftError
from weft.runtime import get
from weft.runtime.interface import Graph
from weft_bench.runtime.null_tasks import native_noop, python_noop

RUNTIME = get(DEVICE)
STREAM = RUNTIME.stream()
TASK = native_noop()
NUMBER = 1 if ON_GPU else 0  # the number of the driver
REPLAYS = 300 if ON_GPU else 3
LINKS = 200 if ON_GPU else 20
X = torch.zeros(64, device=RUNTIME.device)
HOST = RUNTIME.pinned((64,), torch.float32)
RUNTIME.synchronize()


def versions() -> dict[str, Any]:
    driver = _core.cuda_unavailable_reason() or _core.driver_version(1)
    found = {"torch": torch.__version__, "weft": weft.__version__, "driver": driver}
    return {**found, "architectures": _core.cuda_architectures(), "memory": RUNTIME.memory()}


def calls_on_a_thread() -> dict[str, str] | str:
    """Call the driver on a thread without a context. Returns the errors."""
    event, stream, d = RUNTIME.event(), STREAM.handle, NUMBER
    calls: dict[str, Callable[[], object]] = {
        "event_query": lambda: _core.event_query(d, event.handle),
        "event_record": lambda: _core.event_record(d, event.handle, stream),
        "wait_event": lambda: _core.stream_wait_event(d, stream, event.handle),
        "memcpy": lambda: _core.memcpy_async(d, HOST.data_ptr(), X.data_ptr(), 32, stream),
        "event_synchronize": lambda: _core.event_synchronize(d, event.handle),
        "stream_synchronize": lambda: _core.stream_synchronize(d, stream),
        "event_create": lambda: _core.event_destroy(d, _core.event_create(d, 2)),
        "hostfunc": lambda: STREAM.hostfunc(TASK),
    }
    failed: dict[str, str] = {}

    def run() -> None:
        for name, call in calls.items():
            try:
                call()
            except Exception as error:
                failed[name] = str(error)[:70]

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    RUNTIME.synchronize()
    return failed or "all well"


def captured(issue: Callable[[], object], times: int = 1) -> Graph:
    """Run `issue` once, then capture it `times` times in a graph."""
    issue()
    STREAM.synchronize()
    with RUNTIME.capture(STREAM) as graph:
        for _ in range(times):
            issue()
    return graph


def us_of(graph: Graph, repeat: int = 12) -> float:
    """The median time of a replay in microseconds. The first three replays do not count."""
    times = []
    for _ in range(repeat + 3):
        begin = time.perf_counter()
        graph.replay()
        STREAM.synchronize()
        times.append(time.perf_counter() - begin)
    return median(times[3:]) * 1e6


def us_a_link(issue: Callable[[], object], links: int) -> float:
    """Return the microseconds per link of a graph that is a chain of `links` equal links."""
    graph = captured(issue, links)
    us = us_of(graph) / links
    graph.close()
    return us


def kernel() -> None:
    STREAM.launch(X.add_, 1)


def us_of_links() -> dict[str, Any]:
    polled = replace(TASK, polled=True)
    links: dict[str, Callable[[], object]] = {
        "host": lambda: STREAM.hostfunc(TASK),
        "Python": lambda: STREAM.hostfunc(python_noop),
        "kernel": kernel,
        "copy": lambda: STREAM.copy(HOST, X),
    }
    found: dict[str, Any] = {}
    if (refused := RUNTIME.prepare_polling()) is None:
        links["polled"] = lambda: STREAM.hostfunc(polled)
    else:
        found["not polled"] = refused
    found |= {name: us_a_link(issue, LINKS) for name, issue in links.items()}
    for name in ("copy", "host", "polled"):
        if (issue := links.get(name)) is not None:
            found[f"kernel + {name}"] = us_a_link(partial(one_after_another, kernel, issue), LINKS // 2)
    return found


def one_after_another(*issues: Callable[[], object]) -> None:
    for issue in issues:
        issue()


def us_of_a_branch() -> dict[str, float]:
    """Measure a kernel and a host task on a second stream that the first one joins, by host functions and by
    polling."""
    other = RUNTIME.stream(high_priority=True)
    fork, join = RUNTIME.event(), RUNTIME.event()

    def issue(polled: bool) -> None:
        kernel()
        STREAM.record(fork)
        other.wait(fork)
        other.hostfunc(replace(TASK, polled=polled))
        other.record(join)
        STREAM.wait(join)
        kernel()

    ways = (False, True) if RUNTIME.prepare_polling() is None else (False,)
    return {"polled" if polled else "host": us_a_link(partial(issue, polled), 60) for polled in ways}


def seconds_of_two(graph: Graph) -> tuple[float, float, float]:
    """Return the seconds of the call for a replay, of a second call for the same graph, and until both replays are
    done."""
    begin = time.perf_counter()
    graph.replay()
    first = time.perf_counter()
    graph.replay()
    second = time.perf_counter()
    STREAM.synchronize()
    return first - begin, second - first, time.perf_counter() - begin


def second_replay() -> dict[str, float]:
    """Measure whether replaying a graph that still runs blocks the caller."""
    short = captured(kernel, LINKS)
    us_of(short)
    first, second, _ = seconds_of_two(short)
    found = {"us of the first": first * 1e6, "of the second": second * 1e6}
    short.close()
    if ON_GPU:
        large = torch.zeros(1 << 28, device=RUNTIME.device)
        RUNTIME.synchronize()
        slow = captured(lambda: STREAM.launch(large.add_, 1), 28)
        first, second, both = seconds_of_two(slow)
        found |= {"of a long graph, first": first * 1e6, "second": second * 1e6, "both done, ms": both * 1e3}
        slow.close()
    return found


def broken_capture() -> dict[str, Any]:
    """Check that a capture of a function that reads a value fails, and that the next capture works."""
    x = torch.zeros(4, device=RUNTIME.device)
    RUNTIME.synchronize()
    found: dict[str, Any] = {}
    if ON_GPU:
        found["refused"] = "NO"
        try:
            with RUNTIME.capture(STREAM):
                STREAM.launch(lambda: x.sum().item())
        except (WeftError, RuntimeError) as error:
            found["refused"] = f"{type(error).__name__}: {str(error)[:70]}"
        found["stream restored"] = torch.cuda.current_stream().cuda_stream != STREAM.handle
    with RUNTIME.capture(STREAM) as graph:
        STREAM.launch(x.add_, 1)
    graph.replay()
    STREAM.synchronize()
    graph.close()
    return {**found, "then": x.tolist()}


def chain_of_products() -> dict[str, Any]:
    """Run eight products of three rows with norms and residuals, and cuBLAS's products between them. Returns the
    error relative to float64, and the number of replays whose bits differ from the eager run's."""
    from weft.ops.linear import Linear, Norm

    torch.manual_seed(0)
    device, size = RUNTIME.device, 192
    matrices = [torch.randn(size, size, device=device) * 0.08 for _ in range(8)]
    weights = [Linear(matrix) for matrix in matrices]
    norm = Norm(torch.ones(size, device=device), 1e-5)
    x = torch.randn(3, size, device=device)
    out = torch.empty_like(x)
    RUNTIME.publish()
    RUNTIME.synchronize()

    def chain() -> None:
        y = x
        for i, linear in enumerate(weights):
            y = linear(y, norm, residual=y)
            if i % 3 == 2:
                y = torch.mm(y, matrices[0]) * 0.1 + y
        out.copy_(y)

    expected = x.double()
    for i, matrix in enumerate(matrices):
        normed = expected * torch.rsqrt((expected * expected).mean(-1, keepdim=True) + norm.eps)
        expected = normed @ matrix.double().t() + expected
        if i % 3 == 2:
            expected = (expected @ matrices[0].double()) * 0.1 + expected
    STREAM.launch(chain)
    STREAM.synchronize()
    error = float((out.double() - expected).norm() / expected.norm())
    bits, others = out.clone(), 0
    graph = captured(lambda: STREAM.launch(chain))
    for _ in range(REPLAYS):
        out.zero_()
        RUNTIME.synchronize()
        graph.replay()
        STREAM.synchronize()
        others += not torch.equal(out, bits)
    graph.close()
    return {"error": error, "replays": REPLAYS, "of other bits": others}


with answers("runtime") as part:
    part.ask("versions", versions)
    part.ask("calls on a thread without a context", calls_on_a_thread)
    part.ask("us of a link, chains in one graph", us_of_links)
    part.ask("us of fork, host task and join between kernels", us_of_a_branch)
    part.ask("a second replay of a graph that runs", second_replay)
    part.ask("a capture that a function breaks", broken_capture)
    part.ask("a chain by programmatic launch, in a graph", chain_of_products)
    part.ask("memory", lambda: RUNTIME.memory())
