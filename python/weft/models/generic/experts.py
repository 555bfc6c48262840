"""Mixtures of experts of transformers' models, computed by `weft.ops.experts`.

transformers' experts modules call the function that is registered under the name in
`config._experts_implementation`. `pack_experts` packs a module's weights once; the registered function "weft" then
calls the packed experts, and the module's parameters may be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

from weft.errors import ModelError
from weft.models.generic.calls import NAME, current
from weft.ops.experts import Activation, Experts, Function

FORM = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed")
"""Attributes that transformers sets on experts modules that call the registered function."""


def pack_experts(module: Any, weight_dtype: torch.dtype | None = None) -> Experts:
    """Pack the weights of a transformers experts module, by default in their own dtype. From then on weft's function
    uses the packed copy, and the parameters may be deleted.

    Raises `ModelError` with the name of the module's class if weft can't compute it.
    """
    name = type(module).__name__
    if not all(hasattr(module, key) for key in FORM):
        raise ModelError(f"{name}: this class does not call transformers' ExpertsInterface")
    if module.has_post_expert_norm:
        raise ModelError(f"{name}: weft has no norm after each expert")
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    wanted = {up_name, "down_proj"} | ({f"{up_name}_bias", "down_proj_bias"} if module.has_bias else set())
    found = dict((*module.named_parameters(), *module.named_buffers()))
    if set(found) != wanted:
        raise ModelError(f"{name}: has the tensors {sorted(found)}; weft knows {sorted(wanted)}")
    strange = [key for key, tensor in found.items() if not tensor.is_floating_point()]
    if strange:
        raise ModelError(f"{name}: {strange[0]!r} is {found[strange[0]].dtype}; load the weights dequantized")
    tensors = {key: tensor.detach() for key, tensor in found.items()}
    up, down = tensors[up_name], tensors["down_proj"]
    if module.is_transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    up_bias, down_bias = tensors.get(f"{up_name}_bias"), tensors.get("down_proj_bias")
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    activation, interleaved = _activation(module)
    if module.has_gate:
        gate, up = _halves(up, interleaved)
        if up_bias is not None:
            gate_bias, up_bias = _halves(up_bias, interleaved)
    packed = Experts(
        gate,
        up,
        down,
        activation,
        gate_bias=gate_bias,
        up_bias=up_bias,
        down_bias=down_bias,
        dtype=weight_dtype,
    )
    module.weft_experts = packed
    return packed


def _forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The function that transformers' experts modules call. Shapes: [N, H], [N, k], [N, k] -> [N, H]."""
    calls = current()
    if calls is not None and calls.plan is not None:
        return torch.zeros_like(hidden_states)
    packed = getattr(module, "weft_experts", None)
    if packed is None:
        raise ModelError(f"{type(module).__name__}: call pack_experts(module) before its forward")
    live = None if calls is None else calls.live_of(hidden_states)
    out: Tensor = packed(
        hidden_states, top_k_index.long().contiguous(), top_k_weights.float().contiguous(), live
    )
    return out


ExpertsInterface.register(NAME, _forward)


def _halves(tensor: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gates and the ups in dimension 1."""
    if interleaved:
        return tensor[:, ::2], tensor[:, 1::2]
    gate, up = tensor.chunk(2, 1)
    return gate, up


def _activation(module: Any) -> tuple[Activation, bool]:
    """Find the activation of a module by comparing it with weft's on sample values, which go beyond its limits.
    Returns it and whether gates and ups are interleaved. The classes have no common attribute for it."""
    limits = _numbers(module, "limit", "swiglu_limit")
    slopes = _numbers(module, "alpha", "swiglu_alpha")
    sample = torch.linspace(-1.5, 1.5, 61) * max([12.0, *limits])
    try:
        if not module.has_gate:
            result = module.act_fn(sample)
            for activation in _activations([], []):
                if _agree(result, activation(sample)):
                    return activation, False
        else:
            gate, up = (grid.flatten() for grid in torch.meshgrid(sample, sample, indexing="ij"))
            for interleaved in (False, True):
                result = module._apply_gate(
                    torch.stack((gate, up), 1).flatten() if interleaved else torch.cat((gate, up))
                )
                for activation in _activations(limits, slopes):
                    if _agree(result, activation(gate, up)):
                        return activation, interleaved
    except (TypeError, RuntimeError) as error:
        raise ModelError(f"{type(module).__name__}: weft can't examine its activation: {error}") from error
    function = getattr(module, "act_fn", None)
    described = f" ({type(function).__name__})" if isinstance(function, nn.Module) else ""
    raise ModelError(f"{type(module).__name__}: weft does not have its activation{described}")


def _activations(limits: list[float], slopes: list[float]) -> Iterator[Activation]:
    """Activations that a module may have, by the values of its attributes."""
    for function in Function:
        yield Activation(function)
    yield Activation(Function.SILU, slope=1.702)  # also called quick GELU
    for limit in limits:
        for function in Function:
            yield Activation(function, limit=limit)
        for slope in slopes:
            yield Activation(Function.SILU, slope=slope, limit=limit, shift=1.0)


def _numbers(module: nn.Module, *names: str) -> list[float]:
    values = [getattr(module, name, None) for name in names]
    return sorted({float(value) for value in values if isinstance(value, (int, float)) and value > 0})


def _agree(actual: Tensor, expected: Tensor) -> bool:
    return actual.shape == expected.shape and torch.allclose(actual.float(), expected, rtol=1e-5, atol=1e-5)
