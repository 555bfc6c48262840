"""The reference for mixtures of experts: one product after another, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from support.activations import rounded
from weft.ops.activation import Activation
from weft.ops.experts import Experts
from weft.ops.formats import Activations


@dataclass
class Layer:
    """Weights of a layer's experts, as `Experts` takes them."""

    gate: Tensor | None
    up: Tensor
    down: Tensor
    activation: Activation
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def packed(self, activations: Activations | None = None) -> Experts:
        biases = {"gate_bias": self.gate_bias, "up_bias": self.up_bias, "down_bias": self.down_bias}
        return Experts(self.gate, self.up, self.down, self.activation, activations=activations, **biases)

    def on(self, device: str | torch.device) -> Layer:
        moved = {key: None if value is None else value.to(device) for key, value in self._tensors().items()}
        return Layer(**moved, activation=self.activation)

    def _tensors(self) -> dict[str, Tensor | None]:
        return {key: value for key, value in vars(self).items() if key != "activation"}

    def __call__(
        self, x: Tensor, index: Tensor, weights: Tensor, activations: Activations = Activations.FLOAT32
    ) -> Tensor:
        """The results in float64, [N, H]. Both products round their input rows by `activations`."""
        out = torch.zeros(x.shape[0], self.down.shape[1], dtype=torch.float64)
        for n, row in enumerate(rounded(x, activations).double()):
            for e, weight in zip(index[n].tolist(), weights[n].double(), strict=True):
                if 0 <= e < len(self.up):
                    gate = None if self.gate is None else product(self.gate, row, self.gate_bias, e)
                    up = product(self.up, row, self.up_bias, e)
                    inner = self.activation(up) if gate is None else self.activation(gate, up)
                    if activations is Activations.BFLOAT16:
                        inner = rounded(inner.float(), activations).double()
                    out[n] += weight * product(self.down, inner, self.down_bias, e)
        return out


def product(matrices: Tensor, x: Tensor, bias: Tensor | None, expert: int) -> Tensor:
    result = matrices[expert].double() @ x
    return result if bias is None else result + bias[expert].double()


def layer_of(
    experts: int,
    inner: int,
    hidden: int,
    activation: Activation,
    dtype: torch.dtype = torch.float32,
    *,
    gated: bool = True,
    has_bias: bool = False,
) -> Layer:
    """A layer with random weights."""
    torch.manual_seed(1000 * experts + inner + hidden)

    def matrices(outputs: int, inputs: int) -> Tensor:
        return (torch.randn(experts, outputs, inputs) * inputs**-0.5).to(dtype)

    gate = matrices(inner, hidden) if gated else None
    layer = Layer(gate, matrices(inner, hidden), matrices(hidden, inner), activation)
    if has_bias:
        layer.gate_bias = torch.randn(experts, inner) if gated else None
        layer.up_bias, layer.down_bias = torch.randn(experts, inner), torch.randn(experts, hidden)
    return layer


def routed(rows: int, experts: int, chosen: int, hidden: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows, choices and weights. Some experts are chosen far more often than others."""
    torch.manual_seed(seed)
    popularity = torch.rand(rows, experts) * torch.linspace(1, 3, experts)
    return torch.randn(rows, hidden), popularity.topk(chosen).indices, torch.rand(rows, chosen)
