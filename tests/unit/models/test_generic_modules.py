"""The modules of a transformers network that weft's operations replace compute what they did before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.models.generic.modules import PackedLinear, PackedMLP, PackedNorm, pack_modules

SIZE, INNER = 32, 48


class Mlp(nn.Module):
    """An MLP with SwiGLU and weights as small as those of real models."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(SIZE, INNER, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(INNER, SIZE, bias=bias)
        self.act_fn = nn.SiLU()
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Scaled(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0.5


class Clamped(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x).clamp(max=7.0), self.up_proj(x).clamp(-7.0, 7.0)
        return self.down_proj(self.act_fn(gate) * up)


class Gelu(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.GELU()  # type: ignore[assignment]


class Gated(Mlp):
    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        return super().forward(x) * gates


class ToyRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(SIZE)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class OuterRMSNorm(ToyRMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


class Network(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(40, SIZE), nn.Linear(SIZE, 40, bias=False)
        self.module = module

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


@pytest.mark.parametrize(
    ("make", "mixin"),
    [
        (Mlp, PackedMLP),
        (lambda: Mlp(bias=True), PackedMLP),
        (Scaled, None),
        (Clamped, None),
        (Gelu, None),
        (ToyRMSNorm, PackedNorm),
        (OuterRMSNorm, None),
        (lambda: nn.Linear(SIZE, INNER), PackedLinear),
    ],
)
@torch.inference_mode()
def test_a_module_is_replaced_only_by_one_that_computes_the_same(make: Any, mixin: type | None) -> None:
    torch.manual_seed(0)
    module = make()
    before, network = copy.deepcopy(module), Network(module)
    pack_modules(network, torch.float32)
    mixins = (PackedMLP, PackedNorm, PackedLinear)
    assert [each for each in mixins if isinstance(network.module, each)] == ([mixin] if mixin else [])
    for scale in (1e-3, 1.0, 60.0):
        x = torch.randn(5, SIZE) * scale
        expected = before(x)
        assert (network.module(x) - expected).abs().max() <= 1e-4 * expected.abs().max()


@torch.inference_mode()
def test_a_module_with_other_arguments_keeps_its_forward() -> None:
    module = Gated()
    before = copy.deepcopy(module)
    pack_modules(Network(module), torch.float32)
    x, gates = torch.randn(5, SIZE), torch.rand(5, 1)
    assert torch.allclose(module(x, gates), before(x, gates), atol=1e-6)
    assert not isinstance(module, PackedMLP) and isinstance(module.gate_proj, PackedLinear)


@torch.inference_mode()
def test_tensors_become_no_narrower() -> None:
    module = Gated()
    module.register_buffer("frequencies", torch.tensor([1 / 3]))
    module.register_buffer("rates", torch.tensor([1 / 3], dtype=torch.bfloat16))
    before = module.frequencies.clone()
    pack_modules(Network(module), torch.bfloat16)
    assert torch.equal(module.frequencies, before) and module.rates.dtype is torch.bfloat16
    pack_modules(Network(module), torch.float32)
    assert module.rates.dtype is torch.float32
