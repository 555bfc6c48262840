"""What becomes a node when a launched function is captured, and when it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import weft.runtime.cpu as cpu
from support.captured import Captured, labels
from weft.ops.linear import Linear, Norm
from weft.ops.rows import embed
from weft.runtime.recorder import PYTHON, current_recorder


@pytest.fixture(params=["inline", "threads", "random"], autouse=True)
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu.set_schedule(request.param, seed=3)
    yield
    cpu.synchronize()
    cpu.set_schedule("inline")


def test_nothing_is_computed_at_capture_and_python_runs_once() -> None:
    x, runs = torch.zeros(3), []

    def count() -> None:
        runs.append(0)
        x.add_(1)
        embed(torch.ones(4, 3), torch.zeros(1, dtype=torch.int64), torch.float32)

    captured = Captured(count)
    assert x.tolist() == [0, 0, 0]
    for _ in range(3):
        captured.replay()
    assert x.tolist() == [3, 3, 3]
    assert runs == [0]


def test_after_a_capture_the_thread_computes_again() -> None:
    x, out = torch.randn(2, 4), torch.zeros(2, 4)
    Captured(lambda: out.copy_(x.reshape(4, 2).t().softmax(1).flatten().view(2, 4)))
    assert current_recorder() is None
    norm = Norm(torch.ones(4), 1e-6)
    assert norm(x).abs().sum() > 0


def test_launching_in_a_launched_function_captures_both() -> None:
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    x, out = torch.randn(4), torch.zeros(4)

    def inner(y: Tensor) -> None:
        out.copy_(torch.cat((y, y * 2)).reshape(2, 4).sum(0))

    def outer() -> None:
        y = x + 1
        stream.launch(inner, y)
        out.mul_(y)

    with cpu.graph(graph, stream=stream):
        stream.launch(outer)
    graph.launch_on(stream.handle)
    stream.synchronize()
    torch.testing.assert_close(out, 3 * (x + 1) * (x + 1))


def test_nodes_that_run_on_the_capturing_thread_meanwhile_compute() -> None:
    x, y, other = torch.zeros(2, 3), torch.zeros(2), cpu.Stream()
    norm = Norm(torch.ones(3), 1e-6)

    def side() -> None:
        norm(torch.ones(2, 3), out=x)
        y.copy_(x.reshape(-1)[:2])

    def main() -> None:
        other.synchronize()

    other.launch(side)
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    with cpu.graph(graph, stream=stream, capture_error_mode="relaxed"):
        stream.launch(main)
    torch.testing.assert_close(x, torch.ones(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(y, torch.ones(2), atol=1e-5, rtol=0)


def test_wefts_operations_are_nodes_without_python() -> None:
    linear, norm = Linear(torch.randn(6, 4)), Norm(torch.ones(4), 1e-6)
    x, tokens, out = torch.randn(2, 4), torch.tensor([1, 0, 2, 2]), torch.zeros(2, 6)

    def native() -> None:
        y = embed(linear.weight[0, :4], tokens.view(2, 2).t().reshape(-1), torch.float32)
        out.zero_()
        out[:, :4] = y[:2, :4]
        linear(x, norm, residual=out, out=out)

    generator = torch.Generator()
    found = labels(native, lambda: out.normal_(generator=generator))
    assert [label.rpartition(": ")[2] for label in found[:-1]] == ["copy", "embed", "fill", "copy", "linear"]
    assert not any(label.startswith(PYTHON) for label in found[:-1])
    assert found[-1].startswith(PYTHON) and found[-1].endswith("aten.normal_.default")
    captured = Captured(native)
    for _ in range(2):
        x.normal_()
        captured.replay()
        got = out.clone()
        with torch.inference_mode():
            native()
        assert torch.equal(got, out)


def test_operations_of_weft_called_by_torch_are_native_too() -> None:
    out, x = torch.zeros(2, 4), torch.nn.Parameter(torch.randn(2, 4), requires_grad=False)
    norm = Norm(torch.ones(4), 1e-6)
    assert [label.rpartition(": ")[2] for label in labels(lambda: norm(x, out=out))] == ["rms_norm"]


def test_a_host_value_is_baked_in() -> None:
    steps, x = iter(range(1, 10)), torch.zeros(1)
    captured = Captured(lambda: x.add_(next(steps)))
    for _ in range(3):
        captured.replay()
    assert x.item() == 3


def test_a_node_that_fails_at_replay_fails_that_replay() -> None:
    x, index, out = torch.arange(4), torch.tensor([9]), torch.zeros(1, dtype=torch.int64)
    captured = Captured(lambda: out.copy_(x.index_select(0, index)))
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        captured.replay()
    for value in (3, 1):
        index.fill_(value)
        captured.replay()
        assert out.item() == value
    index.fill_(-9)
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        captured.replay()
