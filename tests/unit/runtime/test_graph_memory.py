"""The memory of CPU graphs: whose it is, and when it is used again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import weft.runtime.cpu as cpu
from support.captured import Captured
from weft.errors import GraphError
from weft.runtime.graph_memory import Arena, check_memory

pytestmark = pytest.mark.usefixtures("quick_collection")


@pytest.fixture(params=["inline", "threads", "random"], autouse=True)
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu.set_schedule(request.param, seed=3)
    yield
    cpu.synchronize()
    cpu.set_schedule("inline")


@pytest.fixture
def checked() -> Iterator[None]:
    check_memory(True)
    yield
    check_memory(False)


def captured_with_a_tensor_that_goes(native: bool) -> tuple[Captured, Tensor]:
    x, out = torch.full((4,), 3.0), torch.zeros(4)
    return Captured(lambda: out.copy_(x) if native else torch.mul(x, 2, out=out)), out


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.usefixtures("checked")
def test_a_tensor_freed_under_the_graph_is_found(native: bool) -> None:
    captured, _ = captured_with_a_tensor_that_goes(native)
    gc.collect()
    with pytest.raises(GraphError, match="1 tensors that were freed"):
        captured.replay()


@pytest.mark.parametrize("native", [True, False])
def test_a_graph_that_is_not_checked_keeps_what_it_names(native: bool) -> None:
    captured, out = captured_with_a_tensor_that_goes(native)
    gc.collect()
    captured.replay()
    assert out.tolist() == [3.0 if native else 6.0] * 4


@pytest.mark.usefixtures("checked")
def test_the_check_knows_what_is_the_graphs_own() -> None:
    out, x = torch.zeros(2, 3), torch.randn(3, dtype=torch.complex64)

    def own() -> None:
        constant = torch.tensor([1.0, 2.0, 3.0])
        y = torch.cat((torch.zeros(0, 3), constant[None] * 2, torch.full((1, 3), 5.0)))
        out.copy_(y + x.conj().imag)

    captured = Captured(own)
    gc.collect()
    captured.replay()
    torch.testing.assert_close(out, torch.tensor([[2.0, 4, 6], [5, 5, 5]]) - x.imag)


@pytest.mark.parametrize(
    "keep", [lambda x, kept: kept.append(x + 1), lambda x, kept: kept.append((x * 2)[1:].view(-1))]
)
def test_an_allocation_that_outlives_its_function_is_found(
    keep: Callable[[Tensor, list[Tensor]], None],
) -> None:
    x, kept = torch.zeros(4), list[Tensor]()
    with pytest.raises(GraphError, match="keeps 1 tensors that it allocated"):
        Captured(lambda: keep(x, kept))


def test_what_only_a_cycle_holds_does_not_outlive() -> None:
    x, out = torch.ones(2), torch.zeros(2)

    def cyclic() -> None:
        cycle: list[object] = [x + 1]
        cycle.append(cycle)
        assert isinstance(cycle[0], Tensor)
        out.copy_(cycle[0])

    Captured(cyclic).replay()
    assert out.tolist() == [2, 2]


def test_memory_is_used_again_only_after_its_tensor_died() -> None:
    """Each sum is read at the end; values between two are not, so that the next have their memory."""
    x, out, places = torch.randn(64), torch.zeros(8), list[int]()

    def fold() -> None:
        kept = []
        for i in range(8):
            between = x * (i + 1)
            places.append(between.data_ptr())
            kept.append((between + i).sum())
            view, between = between[:1], torch.zeros(1)
            kept[-1] = kept[-1] + 0 * view
        out.copy_(torch.cat([one.view(1) for one in kept]))

    captured = Captured(fold)
    assert len(set(places)) < 8
    captured.replay()
    with torch.inference_mode():
        torch.testing.assert_close(out, torch.stack([(x * (i + 1) + i).sum() for i in range(8)]))


def test_graphs_that_take_turns_share_memory() -> None:
    arena, stream, outs, x = Arena(), cpu.Stream(), torch.zeros(6, 500_000), torch.randn(500_000)
    graphs, sizes = [], []
    for i in range(6):
        first, then = lambda i=i: outs[i].copy_((x * i + 1).abs()), lambda i=i: outs[i].add_(x.exp() * i)
        graphs.append(Captured(first, then, pool=arena, stream=stream))
        sizes.append(arena.num_bytes)
    assert len(set(sizes)) == 1
    for _ in range(2):
        x.uniform_()
        for i in (3, 0, 5, 1, 2, 4):
            graphs[i].replay()
        for i in range(6):
            torch.testing.assert_close(outs[i], (x * i + 1).abs() + x.exp() * i)


def test_streams_of_one_capture_do_not_share_memory() -> None:
    """They run beside each other: what one has done with is not free for the other."""
    stream, side, graph = cpu.Stream(), cpu.Stream(), cpu.CUDAGraph()
    x, outs, places = torch.randn(256), torch.zeros(2, 256), [set[int](), set[int]()]

    def work(number: int) -> None:
        y = x
        for _ in range(20):
            y = y * 1.0 + number
            places[number].add(y.data_ptr())
        outs[number].copy_(y)

    with cpu.graph(graph, stream=stream):
        side.wait_stream(stream)
        stream.launch(work, 0)
        side.launch(work, 1)
        stream.wait_stream(side)
    assert not places[0] & places[1]
    for _ in range(5):
        outs.zero_()
        graph.launch_on(stream.handle)
        stream.synchronize()
        torch.testing.assert_close(outs[0], x)
        torch.testing.assert_close(outs[1], x + 20)


def test_a_graph_that_goes_leaves_its_memory() -> None:
    arena, out = Arena(), torch.zeros(4)
    captured = Captured(lambda: out.copy_(torch.arange(4).double() * 2), pool=arena)
    captured.replay()
    del captured
    gc.collect()
    Captured(lambda: out.copy_(torch.arange(4).double() * 3), pool=arena).replay()
    assert out.tolist() == [0, 3, 6, 9]
