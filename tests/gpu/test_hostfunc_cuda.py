"""Host functions inside torch's CUDA graphs, through the same code that the CPU tests run."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

import weft
from weft import free_hostfunc_user_data, hostfunc, hostfunc_handles, launch_hostfunc
from weft.errors import HostFuncError
from weft.runtime.buffers import PinnedRing
from weft.runtime.cuda import cuda_runtime, unavailable_reason

REASON = unavailable_reason()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(REASON is not None, reason=f"needs a CUDA GPU: {REASON}"),
]


@hostfunc
def increase(x: torch.Tensor) -> None:
    x.add_(1)


def wait_until_freed(gone: weakref.ref[object]) -> None:
    """CUDA's destructors run on a thread of its own, some time after."""
    for _ in range(200):
        torch.cuda.synchronize()
        if gone() is None:
            return
        time.sleep(0.02)
    pytest.fail("the payload was not freed")


class Token:
    pass


def test_a_python_function_inside_torchs_graph() -> None:
    x = torch.zeros(10, dtype=torch.int32)
    stream, g = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=stream):
        increase(x)
        increase(x)
    assert len(hostfunc_handles()) == 2
    with torch.cuda.stream(stream):
        for _ in range(10):
            g.replay()
    torch.cuda.synchronize()
    assert x.eq(20).all()
    with torch.cuda.stream(stream):
        for _ in range(5):
            assert increase(x) is None
    torch.cuda.synchronize()
    assert x.eq(25).all()
    g.reset()
    for _ in range(200):
        torch.cuda.synchronize()
        if not hostfunc_handles():
            break
        time.sleep(0.02)
    assert hostfunc_handles() == []


def test_kernels_and_host_functions_keep_the_streams_order() -> None:
    stream, g = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    device = torch.zeros(1, device="cuda")
    host = torch.zeros(1, pin_memory=True)
    with torch.cuda.graph(g, stream=stream):
        device.add_(1)
        host.copy_(device, non_blocking=True)
        launch_hostfunc(host.mul_, 3)
        device.copy_(host, non_blocking=True)
    expected = 0
    for _ in range(5):
        with torch.cuda.stream(stream):
            g.replay()
        expected = (expected + 1) * 3
    stream.synchronize()
    assert device.item() == expected


def test_a_payload_lives_while_a_replay_is_in_flight() -> None:
    entered, go, ran = threading.Event(), threading.Event(), []

    def wait(token: Token) -> None:
        entered.set()
        assert go.wait(60)
        ran.append(token is not None)

    token = Token()
    gone = weakref.ref(token)
    stream, g = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=stream):
        launch_hostfunc(wait, token)
    with torch.cuda.stream(stream):
        g.replay()
    assert entered.wait(60)
    del token
    reset = threading.Thread(target=g.reset)
    reset.start()
    gc.collect()
    assert gone() is not None
    go.set()
    reset.join()
    wait_until_freed(gone)
    assert ran == [True]


def test_failures_and_tombstones() -> None:
    stream, g = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = torch.zeros(1, device="cuda")
    with torch.cuda.graph(g, stream=stream):
        handle = launch_hostfunc(lambda: {}["missing"])
        launch_hostfunc(id, x)
        x.add_(1)
    assert handle is not None
    with torch.cuda.stream(stream):
        g.replay()
    stream.synchronize()
    with pytest.raises(KeyError, match="missing"):
        weft.check()
    free_hostfunc_user_data(handle)
    with torch.cuda.stream(stream):
        g.replay()
    stream.synchronize()
    with pytest.raises(HostFuncError, match="freed by free_hostfunc_user_data"):
        weft.check()
    assert x.item() == 2
    g.reset()


def test_the_innermost_context_decides() -> None:
    cpu_stream, cuda_stream = weft.runtime.cpu.Stream(), torch.cuda.Stream()
    assert weft.runtime.current().driver == 1
    with weft.runtime.cpu.stream(cpu_stream):
        assert weft.runtime.current().handle == cpu_stream.handle
        with torch.cuda.stream(cuda_stream):
            assert weft.runtime.current().handle == cuda_stream.cuda_stream
        assert weft.runtime.current().driver == 0


def test_a_ring_crosses_both_ways() -> None:
    runtime = cuda_runtime()
    stream = runtime.stream()
    x = torch.zeros(1024, device="cuda", dtype=torch.int64)
    runtime.publish()
    into, out = PinnedRing(runtime, x), PinnedRing(runtime, x)
    with runtime.capture(stream) as graph:
        stream.launch(x.mul_, 2)
    for i in range(20):
        into.send(stream, torch.full((1024,), i))
        graph.replay()
        assert out.receive(stream).eq(2 * i).all()
    runtime.synchronize()
    graph.close()
