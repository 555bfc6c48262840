"""Replaces modules of a transformers network by weft's operations: matrix products, embeddings and norms.

A replaced module computes only the live rows, and a row's result does not depend on its batch. On the CPU, weights stay
in 16 bits while activations are float32. A module's class is replaced by a subclass, so its attributes and the methods
that its class adds stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from weft.models.generic.calls import live_of
from weft.models.generic.experts import is_experts, pack_experts
from weft.ops.activation import SWIGLU
from weft.ops.linear import Linear, Norm
from weft.ops.packing import finish_packing
from weft.ops.rows import embed

PLAIN = ("dt_proj", "router.classifier")
"""The ends of names of linear layers whose weights transformers' code reads."""

LARGE = 40.0
"""A gate beyond the limits of MLPs that clamp. Its products are far from the largest float16."""


@dataclass(frozen=True)
class PackedWeight:
    """Stands in the place of a weight that is packed. Code that uses it in an operation of torch fails."""

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size


@dataclass(frozen=True)
class PackedTable(PackedWeight):
    """Stands in the place of the weight of an embedding. Code may read one row of it, as Gemma 4's does."""

    module: PackedEmbedding

    def __getitem__(self, key: Any) -> Tensor:
        row, columns = key if isinstance(key, tuple) else (key, slice(None))
        if not isinstance(row, int):
            raise TypeError("only single rows of an embedding's weight can be read")
        ids = torch.full((1,), row % self.shape[0], device=self.device)
        # Not the method of a subclass, which may scale the row.
        return PackedEmbedding.forward(self.module, ids)[0, columns]


class PackedLinear(nn.Module):
    """Mixin for a linear layer whose weight is packed in `product`."""

    product: Linear
    dtype: torch.dtype
    packed: PackedWeight

    @property
    def weight(self) -> PackedWeight:
        return self.packed

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).to(self.dtype).contiguous()
        return self.product(rows, live=live_of(rows)).view(*x.shape[:-1], self.product.num_outputs)


class PackedMLP(nn.Module):
    """Mixin for an MLP with SwiGLU: down_proj(silu(gate) * up), with gate and up in one product."""

    gate_up: Linear
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out: Tensor = self.down_proj(self.gate_up(rows, live=live_of(rows)))
        return out.view(*x.shape[:-1], out.shape[-1])


class PackedEmbedding(nn.Embedding):
    """An embedding whose result has the dtype of activations. Ids outside of the table are clamped to it. The `table`
    may be the output projection that has the same weight."""

    table: Tensor | Linear
    dtype: torch.dtype
    packed: PackedTable

    @property
    def weight(self) -> PackedTable:  # type: ignore[override]
        return self.packed

    def forward(self, ids: Tensor) -> Tensor:
        return embed(self.table, ids.reshape(-1), self.dtype).view(*ids.shape, self.packed.shape[1])


class PackedNorm(nn.Module):
    """Mixin for an RMS norm over the last dimension."""

    norm: Norm

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self.norm(rows, live=live_of(rows)).view(x.shape)


class Products(TorchFunctionMode):
    """Context in which weft computes torch's products with some matrices, so that a row's bits do not depend on its
    batch. torch multiplies a single row by another algorithm than several."""

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        super().__init__()
        self.matrices = {id(matrix): matrix for matrix in matrices}
        # By the first product: the check at loading makes those that there are. The matrices stay, because other code
        # may read them.
        self.packed: dict[int, Linear] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and len(args) > 1 and id(args[1]) in self.matrices:
            out = self.multiply(args[0], args[1])
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            return out if bias is None else out + bias
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__) and id(args[0]) in self.matrices:
            return self.multiply(args[1].transpose(-1, -2), args[0]).transpose(-1, -2)
        return func(*args, **kwargs)

    def multiply(self, x: Tensor, matrix: Tensor) -> Tensor:
        if id(matrix) not in self.packed:
            self.packed[id(matrix)] = Linear(matrix.data)
            finish_packing()
        rows = x.reshape(-1, x.shape[-1]).to(matrix.dtype).contiguous()
        out = self.packed[id(matrix)](rows, live=live_of(rows))
        return out.view(*x.shape[:-1], out.shape[1])


class WithProducts(nn.Module):
    """Mixin for a module whose code multiplies with matrices of its own, such as a router."""

    products: Products

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.products:
            return super().forward(*args, **kwargs)


def pack_modules(network: Any, dtype: torch.dtype) -> None:
    """Replace the modules of `network` that weft has operations for, one at a time, so that no second copy of the
    weights exists. `dtype` is the dtype of activations. Other tensors get it, too, unless they are wider."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if head.weight is embedding.weight and type(head) is nn.Linear:
        # First, while little else is in memory: for a moment the largest weight is there twice.
        _pack_linear(head, dtype)
        _pack_embedding(embedding, dtype)
        embedding.table = head.product
        finish_packing()
    for name, module in network.named_modules():  # lazily: packing an MLP takes modules out of it
        if is_experts(module):
            pack_experts(module)
        elif _is_swiglu(module):
            _pack_mlp(module, dtype)
        elif name.endswith(PLAIN):
            continue
        elif type(module) is nn.Conv1d:
            _turn_convolution(module)
        elif type(module) in (nn.Linear, Conv1D):
            _pack_linear(module, dtype)
        elif isinstance(module, nn.Embedding) and not isinstance(module, PackedEmbedding):
            _pack_embedding(module, dtype)
    for module in network.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            # transformers keeps some tensors in float32, such as the frequencies of rotary embeddings: rounded to
            # bfloat16, they would turn far positions by other angles.
            is_narrower = tensor.is_floating_point() and tensor.dtype.itemsize < dtype.itemsize
            if is_narrower and tensor.device.type != "meta":
                tensor.data = tensor.data.to(dtype)
    for module in list(network.modules()):
        _take_products(module)
    finish_packing()
    for module in network.modules():
        _replace_norm(module, dtype)


def _take_products(module: Any) -> None:
    """Let weft compute the products of a module's code with its own matrices, and with those of linear layers whose
    weights it reads."""
    if type(module) is nn.Linear or "forward" in vars(module):
        return
    matrices = [matrix for matrix in module.parameters(recurse=False) if matrix.dim() == 2]
    for name, child in module.named_children():
        if type(child) is nn.Linear and name.endswith(PLAIN):
            matrices.append(child.weight)
    matrices = [matrix for matrix in matrices if matrix.is_floating_point() and matrix.device.type != "meta"]
    if matrices:
        module.products = Products(matrices)
        _become(module, WithProducts)


def _is_swiglu(module: Any) -> bool:
    """Whether a module is an MLP with SwiGLU. Its parts and its results on samples must be those of one."""
    projections: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(projection) is nn.Linear for projection in projections):
        return False
    gate, up, down = projections
    if gate.weight.shape != up.weight.shape or (gate.bias is None) != (up.bias is None):
        return False
    grid, sample = torch.linspace(-8, 8, 65), _sample(gate.in_features).to(gate.weight)
    large = sample * (LARGE / gate(sample).abs().max())  # reaches the limits of modules that clamp
    try:
        return torch.allclose(module.act_fn(grid), F.silu(grid), atol=1e-6) and all(
            _is_close(module(x), down(F.silu(gate(x)) * up(x)), 1e-2) for x in (sample, large)
        )
    except Exception:  # it has no activation of its own, or takes other arguments
        return False


def _sample(size: int) -> Tensor:
    """Random rows [4, size] on the CPU, always the same."""
    return torch.randn(4, size, generator=torch.Generator().manual_seed(0), device="cpu")


def _is_close(result: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by at most `tolerance`, relative to the largest element. Small weights give small
    results, so an absolute difference means nothing."""
    is_alike = isinstance(result, Tensor) and result.shape == expected.shape
    return is_alike and bool((result - expected).abs().max() <= tolerance * expected.abs().max())


def _pack_mlp(module: Any, dtype: torch.dtype) -> None:
    halves = module.gate_proj, module.up_proj
    biases = None if halves[0].bias is None else [half.bias.data.to(dtype) for half in halves]
    module.gate_up = Linear([half.weight.data for half in halves], biases, activation=SWIGLU, gated=True)
    del module.gate_proj, module.up_proj
    _become(module, PackedMLP)


def _turn_convolution(module: Any) -> None:
    """Store the weight [C, 1, taps] of a convolution so that a tap's channels are adjacent."""
    module.weight.data = module.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)


def _pack_embedding(module: Any, dtype: torch.dtype) -> None:
    weight = module.weight.data
    module.packed = PackedTable(weight.dtype, weight.device, weight.shape, module)
    module.table, module.dtype = weight, dtype
    del module.weight
    _become(module, PackedEmbedding)


def _pack_linear(module: Any, dtype: torch.dtype) -> None:
    weight, bias = module.weight.data, module.bias
    if isinstance(module, Conv1D):
        weight = weight.t()
    module.product = Linear(weight, None if bias is None else bias.data.to(dtype))
    module.packed = PackedWeight(dtype, weight.device, weight.shape)
    module.dtype = dtype
    del module.weight
    _become(module, PackedLinear)


def _replace_norm(module: Any, dtype: torch.dtype) -> None:
    """Replace a module by weft's RMS norm of activations of `dtype` if it computes the same, with its weight or with
    1 + weight (Gemma)."""
    weight: Any = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    is_norm = "RMSNorm" in type(module).__name__ and isinstance(weight, Tensor) and weight.dim() == 1
    if not is_norm or not isinstance(eps, float) or type(module).forward.__code__.co_argcount != 2:
        return
    sample = _sample(weight.shape[0]).to(weight.device, dtype)
    samples = sample, 1e-3 * sample  # the result of small rows depends on the epsilon
    try:
        expected = [module(x) for x in samples]
    except Exception:  # it takes other arguments
        return
    for factor in (weight, 1 + weight):
        norm = Norm(factor.detach().to(dtype), eps)
        if all(_is_close(norm(x), result, 1e-5) for x, result in zip(samples, expected, strict=True)):
            module.norm = norm
            _become(module, PackedNorm)
            return


def _become(module: Any, mixin: type[nn.Module]) -> None:
    """Give a module the forward of `mixin`, by a class of its own. A subclass of `nn.Embedding` keeps its forward, for
    example one that scales the result: the mixin's forward replaces the one that it calls."""
    kind: Any = type(module)
    bases: tuple[Any, ...] = (mixin, kind)
    if issubclass(mixin, nn.Embedding):
        bases = (mixin,) if kind is nn.Embedding else (kind, mixin)
    module.__class__ = type(kind.__name__, bases, {})
