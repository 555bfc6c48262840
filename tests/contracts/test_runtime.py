"""What every runtime promises: order, capture, replay, failure, release."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import weft
import weft.runtime.cpu as cpu
from support.runtimes import runtime_under, runtimes
from weft import hostfunc_handles
from weft.runtime import NativeTask, Runtime

pytestmark = pytest.mark.usefixtures("quick_collection")

SCHEDULES = ("inline", "threads", *(f"random-{seed}" for seed in range(8)))


@pytest.fixture(params=runtimes(*SCHEDULES))
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with runtime_under(request.param) as runtime:
        yield runtime


def tensor(runtime: Runtime, *values: int) -> torch.Tensor:
    made = torch.tensor(values, dtype=torch.int64, device=runtime.device)
    runtime.publish()
    return made


def append_to(x: torch.Tensor, digit: int) -> None:
    """Makes the order of calls visible in a number."""
    x.mul_(10).add_(digit)


def test_work_of_one_stream_keeps_its_order(runtime: Runtime) -> None:
    stream, x = runtime.stream(), tensor(runtime, 0)
    host = runtime.pinned((1,), torch.int64)
    seen: list[int] = []
    for digit in (1, 2, 3):
        stream.launch(append_to, x, digit)
        stream.copy(host, x)
        stream.hostfunc(lambda: seen.append(int(host)))
    stream.synchronize()
    assert seen == [1, 12, 123]


def test_a_wait_holds_work_back_until_the_other_stream_is_there(runtime: Runtime) -> None:
    first, second = runtime.stream(), runtime.stream()
    event, latch, order = runtime.event(), threading.Event(), []
    x = tensor(runtime, 0)
    # A schedule that runs nodes on this thread can not wait for this thread.
    if isinstance(runtime, cpu.CpuRuntime):
        latch.set()
    first.hostfunc(lambda: order.append(("first", latch.wait(60))))
    first.launch(append_to, x, 1)
    first.record(event)
    second.wait(event)
    second.launch(append_to, x, 2)
    second.hostfunc(lambda: order.append(("second", True)))
    latch.set()
    runtime.synchronize()
    assert order == [("first", True), ("second", True)]
    assert x.tolist() == [12]
    assert event.query()


def test_a_latched_stream_does_not_hold_up_another(runtime: Runtime) -> None:
    held, free = runtime.stream(), runtime.stream()
    x, y = tensor(runtime, 0), tensor(runtime, 0)
    gate, opened = runtime.event(), runtime.stream()
    opened.hostfunc(lambda: None)
    opened.record(gate)
    held.wait(gate)
    held.launch(append_to, x, 1)
    free.launch(append_to, y, 2)
    free.synchronize()
    assert y.tolist() == [2]
    held.synchronize()
    assert x.tolist() == [1]


def test_capture_runs_nothing_and_replay_repeats(runtime: Runtime) -> None:
    main, side = runtime.stream(), runtime.stream()
    fork, join = runtime.event(), runtime.event()
    x, y, runs = tensor(runtime, 1), tensor(runtime, 0), []

    def issue() -> None:
        main.record(fork)
        side.wait(fork)
        side.launch(y.add_, x)
        side.hostfunc(runs.append, 1)
        side.record(join)
        main.launch(x.mul_, 1)
        main.wait(join)
        main.launch(x.add_, y)

    issue()
    runtime.synchronize()
    assert (x.tolist(), y.tolist(), runs) == ([2], [1], [1])
    with runtime.capture(main) as graph:
        issue()
    runtime.synchronize()
    assert (x.tolist(), y.tolist(), runs) == ([2], [1], [1])
    expected_x, expected_y = 2, 1
    for _ in range(5):
        graph.replay()
        expected_y += expected_x
        expected_x += expected_y
    runtime.synchronize()
    assert (x.tolist(), y.tolist(), len(runs)) == ([expected_x], [expected_y], 6)
    graph.close()


def test_replays_read_what_was_copied_before_each(runtime: Runtime) -> None:
    stream = runtime.stream()
    x, total = tensor(runtime, 0), tensor(runtime, 0)
    with runtime.capture(stream) as graph:
        stream.launch(total.add_, x)
    staged = [runtime.pinned((1,), torch.int64) for _ in range(6)]
    for i, host in enumerate(staged):
        host.fill_(10**i)
        stream.copy(x, host)
        graph.replay()
    stream.synchronize()
    assert total.tolist() == [111111]
    graph.close()


SURFACES: dict[str, Callable[[Runtime], None]] = {
    "runtime.check": lambda runtime: runtime.check(),
    "runtime.synchronize": lambda runtime: runtime.synchronize(),
    "weft.check": lambda runtime: weft.check(),
}


@pytest.mark.parametrize("surface", SURFACES)
def test_a_failure_surfaces_once(runtime: Runtime, surface: str) -> None:
    stream, done = runtime.stream(), runtime.event()
    error = ValueError("from the callback")

    def fail() -> None:
        raise error

    x = tensor(runtime, 0)
    with runtime.capture(stream) as graph:
        stream.hostfunc(fail)
        stream.launch(append_to, x, 1)
    graph.replay()
    stream.record(done)
    done.synchronize()
    with pytest.raises(ValueError, match="from the callback") as caught:
        SURFACES[surface](runtime)
    assert caught.value is error
    runtime.synchronize()
    assert x.tolist() == [1]
    graph.close()
    runtime.synchronize()


def test_close_frees_the_payloads_after_the_last_launch(runtime: Runtime) -> None:
    class Token:
        pass

    token, ran = Token(), []
    gone = weakref.ref(token)
    stream = runtime.stream()
    before = hostfunc_handles()
    with runtime.capture(stream) as graph:
        stream.hostfunc(lambda t: ran.append(t is not None), token)
        stream.hostfunc(NativeTask("nothing", _labs(), 0, owner=token))
    del token
    graph.replay()
    graph.replay()
    graph.close()
    for _ in range(100):  # CUDA's destructors run on a thread of its own, some time after
        runtime.synchronize()
        gc.collect()
        if gone() is None:
            break
        threading.Event().wait(0.02)
    assert ran == [True, True]
    assert gone() is None
    assert hostfunc_handles() == before


def _labs() -> int:
    """The address of a C function that takes a word and does nothing."""
    import ctypes

    return ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0


def test_work_is_legal_from_any_thread(runtime: Runtime) -> None:
    stream, x, errors = runtime.stream(), tensor(runtime, 0), []

    def work() -> None:
        try:
            stream.launch(append_to, x, 7)
            stream.synchronize()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
    assert x.tolist() == [7]
