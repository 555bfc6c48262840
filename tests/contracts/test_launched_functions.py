"""The checks of launched functions find what would behave differently on the two devices."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from support.launch_check import check_launched, check_on_fake_cuda, check_recording
from weft.errors import GraphError


@dataclass
class Buffers:
    tokens_B: torch.Tensor
    lengths_B: torch.Tensor
    extra: dict[str, list[torch.Tensor]] = field(default_factory=dict)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def step(self, x: torch.Tensor, out: torch.Tensor) -> None:
        assert isinstance(self.count, torch.Tensor)
        self.count.add_(1)
        out.copy_(self.linear(x) * self.count)


def advance(buffers: Buffers, host: torch.Tensor, slot: int) -> None:
    index = buffers.tokens_B.argmax()
    buffers.lengths_B[slot] += 1
    buffers.tokens_B.copy_(torch.where(buffers.tokens_B > index, 0, buffers.tokens_B + buffers.lengths_B))
    buffers.extra["seen"][0].copy_(host, non_blocking=True)


def multiply(x: torch.Tensor) -> None:
    x.mul_(5)


def add(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


def test_lawful_functions_pass() -> None:
    host = torch.arange(3)
    buffers = Buffers(torch.arange(5), torch.zeros(5, dtype=torch.int64), {"seen": [torch.zeros(3)]})
    with torch.inference_mode():
        check_launched(advance, buffers, host, 2, host=[host])
        check_launched(Layer().step, torch.randn(2, 4), torch.zeros(2, 4))


def test_the_originals_are_not_touched_by_the_fake_run() -> None:
    x = torch.ones(3)
    check_on_fake_cuda(multiply, x)
    assert x.tolist() == [1, 1, 1]


def reads_a_value(x: torch.Tensor) -> None:
    if x.sum().item() > 0:
        x.zero_()


def branches_on_a_value(x: torch.Tensor) -> None:
    if x.any():
        x.zero_()


def shape_from_a_value(x: torch.Tensor) -> None:
    x.nonzero().add_(1)


def mixes_devices(x: torch.Tensor) -> None:
    x.add_(torch.arange(3))


def asks_for_the_cpu(x: torch.Tensor) -> None:
    x.add_(torch.ones(3, device="cpu"))


@pytest.mark.parametrize(
    "fn", [reads_a_value, branches_on_a_value, shape_from_a_value, mixes_devices, asks_for_the_cpu]
)
def test_what_cuda_can_not_capture_is_found_without_cuda(fn: object) -> None:
    assert callable(fn)
    with pytest.raises(GraphError, match=fn.__name__):
        check_on_fake_cuda(fn, torch.zeros(3))


def test_a_host_tensor_mixed_in_is_found() -> None:
    host = torch.arange(3)
    with pytest.raises(GraphError, match="device"):
        check_on_fake_cuda(lambda x, h: x.add_(h), torch.zeros(3), host, host=[host])


def test_a_value_read_on_the_host_is_found_while_recording() -> None:
    with pytest.raises(GraphError, match="reads a device value"):
        check_recording(reads_a_value, torch.ones(3))


def test_a_number_that_a_graph_would_freeze_is_found() -> None:
    step = iter(range(10))

    def depends_on_the_host(x: torch.Tensor) -> None:
        x.add_(next(step))

    with pytest.raises(GraphError, match="depends on something"):
        check_recording(depends_on_the_host, torch.zeros(3))


def test_inputs_can_change_between_the_runs() -> None:
    x, total = torch.ones(3), torch.zeros(3)
    check_recording(add, total, x, between=lambda: x.fill_(7))
    assert total.tolist() == [8, 8, 8]


def test_results_are_refused() -> None:
    with pytest.raises(GraphError, match="returned FakeTensor"):
        check_launched(lambda x: x + 1, torch.zeros(3))
