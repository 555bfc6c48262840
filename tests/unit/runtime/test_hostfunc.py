"""Host functions: launched, captured, replayed, freed."""

from __future__ import annotations

import functools
import gc
import inspect
import resource
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import torch

import weft.runtime.cpu as cuda
from weft import _core, free_hostfunc_user_data, hostfunc, hostfunc_handles, launch_hostfunc
from weft.errors import DriverError, HostFuncError

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture(scope="module", autouse=True)
def other_tests_graphs_are_gone() -> None:
    settled_stats()
    assert hostfunc_handles() == []


def settled_stats() -> dict[str, int]:
    """The counts once no garbage is left whose payload could be freed while a test counts its own."""
    gc.collect()
    cuda.synchronize()
    _core.drain()
    return _core.hostfunc_stats()


@pytest.fixture(params=["inline", "threads", "random"])
def schedule(request: pytest.FixtureRequest) -> Iterator[str]:
    cuda.set_schedule(request.param, seed=7)
    yield request.param
    cuda.synchronize()
    cuda.set_schedule("inline")


@hostfunc
def increase(x: torch.Tensor) -> None:
    x.add_(1)


class Token:
    """An argument whose life can be watched."""


@pytest.mark.usefixtures("schedule")
def test_a_captured_function_runs_at_every_replay() -> None:
    x = torch.zeros(10, dtype=torch.int32)
    stream = cuda.Stream()
    g = cuda.CUDAGraph()
    with cuda.graph(g, stream=stream):
        increase(x)
        increase(x)
    assert x.eq(0).all()
    with cuda.stream(stream):
        for _ in range(10):
            g.replay()
    cuda.synchronize()
    assert x.eq(20).all()
    assert len(hostfunc_handles()) == 2

    with cuda.stream(stream):
        for _ in range(5):
            assert increase(x) is None
    cuda.synchronize()
    assert x.eq(25).all()
    assert len(hostfunc_handles()) == 2

    del g
    cuda.synchronize()
    assert hostfunc_handles() == []


@pytest.mark.usefixtures("schedule")
def test_numbers_are_frozen_and_tensors_are_live() -> None:
    seen: list[tuple[int, int]] = []
    stream, g, x, step = cuda.Stream(), cuda.CUDAGraph(), torch.zeros(1, dtype=torch.int64), 3
    with cuda.graph(g, stream=stream):
        launch_hostfunc(lambda n, t: seen.append((n, int(t))), step, t=x)
    step = 4
    for value in (5, 6):
        x.fill_(value)
        with cuda.stream(stream):
            g.replay()
        cuda.synchronize()
    assert seen == [(3, 5), (3, 6)]


def test_the_decorator_keeps_what_the_function_says_of_itself() -> None:
    assert increase.__name__ == "increase"
    assert list(inspect.signature(increase).parameters) == ["x"]
    assert inspect.get_annotations(increase, eval_str=True)["x"] is torch.Tensor

    class Counter:
        def __init__(self) -> None:
            self.total = 0

        @hostfunc
        def add(self, n: int, *, times: int = 1) -> None:
            """Add `n`, `times` times."""
            self.total += n * times

    counter, stream, g = Counter(), cuda.Stream(), cuda.CUDAGraph()
    assert Counter.add.__doc__ == "Add `n`, `times` times."
    with cuda.graph(g, stream=stream):
        handle = counter.add(2, times=3)
    assert isinstance(handle, int)
    g.replay()
    counter.add(1)
    cuda.synchronize()
    assert counter.total == 7


def test_eager_launches_leak_nothing() -> None:
    token = Token()
    references = weakref.getweakrefcount(token), gc.get_referrers(token)
    stream = cuda.Stream()
    before = settled_stats()

    def launch(count: int) -> None:
        with cuda.stream(stream):
            for _ in range(count):
                launch_hostfunc(id, token)
        cuda.synchronize()

    launch(2_000)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(49):  # what waits is memory, too: of few at a time, whatever else the machine does
        launch(2_000)
    after = _core.hostfunc_stats()
    assert after["run"] - before["run"] == after["freed"] - before["freed"] == 100_000
    assert after["live"] == before["live"]
    assert hostfunc_handles() == []
    assert (weakref.getweakrefcount(token), gc.get_referrers(token)) == references
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 16 * 1024  # KiB


def test_a_graph_destroyed_in_flight_frees_its_payload_once_and_after_it_ran() -> None:
    cuda.set_schedule("threads")
    freed = settled_stats()["freed"]
    entered, go, runs = threading.Event(), threading.Event(), []

    def wait(token: Token) -> None:
        entered.set()
        assert go.wait(60)
        runs.append(token is not None)

    token = Token()
    gone = weakref.ref(token)
    stream, g = cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(g, stream=stream):
        launch_hostfunc(wait, token)
    with cuda.stream(stream):
        g.replay()
    assert entered.wait(60)
    del g, token
    gc.collect()
    assert gone() is not None
    go.set()
    cuda.synchronize()
    assert runs == [True]
    assert gone() is None
    assert _core.hostfunc_stats()["freed"] == freed + 1
    cuda.set_schedule("inline")


@pytest.mark.usefixtures("schedule")
def test_an_early_free_drops_the_payload_and_makes_a_replay_raise() -> None:
    ran: list[int] = []
    token = Token()
    gone = weakref.ref(token)
    stream, g = cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(g, stream=stream):
        handle = launch_hostfunc(lambda t: ran.append(1), token)
        launch_hostfunc(ran.append, 2)
    assert handle is not None
    del token
    free_hostfunc_user_data(handle)
    assert gone() is None
    assert handle not in hostfunc_handles()
    with cuda.stream(stream):
        g.replay()
    with pytest.raises(HostFuncError, match="freed by free_hostfunc_user_data"):
        cuda.synchronize()
    assert ran == []
    with pytest.raises(ValueError, match="unknown"):
        free_hostfunc_user_data(handle)
    del g
    cuda.synchronize()
    assert hostfunc_handles() == []


def test_a_kept_eager_launch_lives_until_its_handle_is_freed() -> None:
    stream, token = cuda.Stream(), Token()
    gone = weakref.ref(token)
    handle = _core.launch_hostfunc(0, stream.handle, False, id, (token,), {})
    del token
    stream.synchronize()
    assert handle is not None
    assert hostfunc_handles() == [handle]
    assert gone() is not None
    free_hostfunc_user_data(handle)
    assert gone() is None
    assert hostfunc_handles() == []


def test_unknown_handles_are_value_errors() -> None:
    for handle in (0, 1 << 60):
        with pytest.raises(ValueError, match="unknown"):
            free_hostfunc_user_data(handle)


def test_a_launch_that_the_driver_refuses_frees_its_payload() -> None:
    token = Token()
    gone = weakref.ref(token)
    live = settled_stats()["live"]
    with pytest.raises(DriverError) as caught:
        _core.launch_hostfunc(0, 0xDEAD0, True, id, (token,), {})
    assert caught.value.name == "CUDA_ERROR_INVALID_HANDLE"
    del caught, token
    _core.drain()
    assert gone() is None
    assert _core.hostfunc_stats()["live"] == live
    assert hostfunc_handles() == []
    with pytest.raises(TypeError):
        launch_hostfunc()  # type: ignore[call-arg]


@pytest.mark.usefixtures("schedule")
def test_a_payload_may_hold_the_last_reference_to_another_graph() -> None:
    stream, inner, outer = cuda.Stream(), cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(inner, stream=stream):
        launch_hostfunc(id, 1)
    with cuda.graph(outer, stream=stream):
        launch_hostfunc(lambda graph: None, inner)
    with cuda.stream(stream):
        outer.replay()
    cuda.synchronize()
    assert len(hostfunc_handles()) == 2
    del inner, outer
    cuda.synchronize()
    cuda.synchronize()
    assert hostfunc_handles() == []


def test_a_driver_object_that_dies_in_a_callback_is_destroyed_after_it() -> None:
    stream = cuda.Stream()
    held = [cuda.CUDAGraph()]
    with cuda.graph(held[0], stream=stream):
        launch_hostfunc(id, 1)
    with cuda.stream(stream):
        launch_hostfunc(held.clear)
    cuda.synchronize()
    cuda.synchronize()
    assert held == []
    assert hostfunc_handles() == []


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


class Asynchronous:
    async def __call__(self) -> None: ...

    async def method(self) -> None: ...


@pytest.mark.parametrize(
    "fn",
    [
        coroutine,
        generator,
        asynchronous_generator,
        functools.partial(coroutine),
        Asynchronous(),
        Asynchronous().method,
    ],
    ids=["coroutine", "generator", "asynchronous generator", "partial", "object", "method"],
)
def test_what_a_call_would_not_run_is_refused(fn: Callable[[], object]) -> None:
    with pytest.raises(HostFuncError, match="calling it runs nothing"):
        hostfunc(fn)
    with pytest.raises(HostFuncError, match="calling it runs nothing"):
        launch_hostfunc(fn)


def test_what_can_not_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="callable"):
        launch_hostfunc(7)  # type: ignore[arg-type]
