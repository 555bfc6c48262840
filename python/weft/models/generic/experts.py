"""Mixtures of experts of transformers' models, computed by `weft.ops.experts`.

transformers' experts modules call the function that is registered under the name in
`config._experts_implementation`. `pack_experts` packs a module's weights once; the registered function "weft" then
calls the packed experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.integrations.moe import ExpertsInterface

from weft.errors import ModelError
from weft.models.generic.calls import NAME, current, live_of
from weft.ops.activation import Activation, Function
from weft.ops.experts import Experts

FORM = ("has_gate", "has_bias", "has_post_expert_norm", "is_transposed")
"""Attributes that transformers sets on experts modules that call the registered function."""


def is_experts(module: Any) -> bool:
    """Whether weft can take the calls of `module`, an experts module of transformers. It may refuse to pack it."""
    return type(module).__name__ in OWN_CLASSES or all(hasattr(module, key) for key in FORM)


def take_calls(module: Any) -> None:
    """Let an experts module call weft's function, if its class does not call the registered one."""
    if type(module).__name__ in OWN_CLASSES:
        module.forward = partial(_forward, module)


def pack_experts(module: Any, weight_dtype: torch.dtype | None = None) -> Experts:
    """Pack the weights of an experts module, by default in their own dtype, and delete its parameters. From then on
    weft's function uses the packed copy.

    Raises `ModelError` with the name of the module's class if weft can't compute it.
    """
    name = type(module).__name__
    if not is_experts(module):
        raise ModelError(f"{name}: this class does not call transformers' ExpertsInterface")
    form = OWN_CLASSES.get(name, _registered)(module)
    packed = Experts(
        form.gate,
        form.up,
        form.down,
        form.activation,
        gate_bias=form.gate_bias,
        up_bias=form.up_bias,
        down_bias=form.down_bias,
        dtype=weight_dtype,
    )
    for part in module.modules():
        part._parameters.clear()
    module.weft_experts = packed
    take_calls(module)
    return packed


def _forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The function that transformers' experts modules call. Shapes: [N, H] or [B, T, H], [N, k], [N, k] -> that of
    `hidden_states`."""
    calls = current()
    if calls is not None and calls.plan is not None:
        return torch.zeros_like(hidden_states)
    packed: Experts | None = getattr(module, "weft_experts", None)
    if packed is None:
        raise ModelError(f"{type(module).__name__}: call pack_experts(module) before its forward")
    rows = hidden_states.reshape(-1, hidden_states.shape[-1]).contiguous()
    index, weights = top_k_index.long().contiguous(), top_k_weights.float().contiguous()
    out = packed(rows, index, weights, live_of(rows))
    if getattr(module, "zero_expert_num", 0):
        # Experts beyond the packed ones return their input. The loop fixes the order of the sum.
        shares = torch.where(index >= packed.num_experts, weights, 0.0).unbind(1)
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        out = out + rows * total[:, None].to(rows.dtype)
    return out.view(hidden_states.shape)


ExpertsInterface.register(NAME, _forward)


class Form(NamedTuple):
    """The tensors of an experts module, as `Experts` takes them."""

    gate: Tensor | None
    up: Tensor
    down: Tensor
    activation: Activation
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def _registered(module: Any) -> Form:
    """The form of a module that calls the registered function."""
    name = type(module).__name__
    if module.has_post_expert_norm:
        raise ModelError(f"{name}: weft has no norm after each expert")
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    wanted = {up_name, "down_proj"} | ({f"{up_name}_bias", "down_proj_bias"} if module.has_bias else set())
    tensors = _tensors(module, wanted)
    up, down = tensors[up_name], tensors["down_proj"]
    if module.is_transposed:
        up, down = up.transpose(1, 2), down.transpose(1, 2)
    up_bias, down_bias = tensors.get(f"{up_name}_bias"), tensors.get("down_proj_bias")
    if not module.has_gate:
        return Form(None, up, down, _activation(module, module.act_fn), None, up_bias, down_bias)
    activation, interleaved = _gate(module)
    gate_bias, up_bias = (None, None) if up_bias is None else _halves(up_bias, interleaved)
    return Form(*_halves(up, interleaved), down, activation, gate_bias, up_bias, down_bias)


def _dbrx(module: Any) -> Form:
    tensors = _tensors(module, {"mlp.w1", "mlp.v1", "mlp.w2"})
    gate, up, down = (
        tensors[f"mlp.{key}"].view(module.num_experts, -1, module.hidden_size) for key in ("w1", "v1", "w2")
    )
    return Form(gate, up, down.transpose(1, 2), _activation(module, module.mlp.activation_fn))


def _longcat_flash(module: Any) -> Form:
    tensors = _tensors(module, {"gate_up_proj", "down_proj"})
    gate, up = tensors["gate_up_proj"][: module.num_routed_experts].chunk(2, 1)
    return Form(gate, up, tensors["down_proj"], _activation(module, module.act_fn))


OWN_CLASSES: dict[str, Callable[[Any], Form]] = {"DbrxExperts": _dbrx, "LongcatFlashExperts": _longcat_flash}
"""Classes that don't call the registered function, but take the same arguments."""


def _tensors(module: Any, wanted: set[str]) -> dict[str, Tensor]:
    """The tensors of a module by name. Raises `ModelError` if they are not those that weft knows."""
    name = type(module).__name__
    found = dict((*module.named_parameters(), *module.named_buffers()))
    if set(found) != wanted:
        raise ModelError(f"{name}: has the tensors {sorted(found)}; weft knows {sorted(wanted)}")
    for key, tensor in found.items():
        if not tensor.is_floating_point():
            raise ModelError(f"{name}: {key!r} is {tensor.dtype}; load the weights dequantized")
    return {key: tensor.detach() for key, tensor in found.items()}


def _halves(tensor: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """Views of the gates and the ups in dimension 1."""
    if interleaved:
        return tensor[:, ::2], tensor[:, 1::2]
    gate, up = tensor.chunk(2, 1)
    return gate, up


def _gate(module: Any) -> tuple[Activation, bool]:
    """Find how a module combines gates and ups: the activation, and whether gates and ups are interleaved. The classes
    have no common attributes for it, so this compares their results on samples, which go beyond the limits."""
    limits, slopes = _numbers(module, "limit", "swiglu_limit"), _numbers(module, "alpha", "swiglu_alpha")
    sample = _sample(*limits)
    gate, up = (grid.flatten() for grid in torch.meshgrid(sample, sample, indexing="ij"))
    for interleaved in (False, True):
        both = torch.stack((gate, up), 1).flatten() if interleaved else torch.cat((gate, up))
        found = _matching(partial(module._apply_gate, both), _activations(limits, slopes), (gate, up))
        if found is not None:
            return found, interleaved
    raise _unknown(module, getattr(module, "act_fn", None))


def _activation(module: Any, function: Any) -> Activation:
    """Find the activation that computes the same as `function` of a module."""
    sample = _sample()
    found = _matching(partial(function, sample), _activations([], []), (sample,))
    if found is None:
        raise _unknown(module, function)
    return found


def _unknown(module: Any, function: Any) -> ModelError:
    described = f" ({type(function).__name__})" if isinstance(function, nn.Module) else ""
    return ModelError(f"{type(module).__name__}: weft does not have its activation{described}")


def _sample(*limits: float) -> Tensor:
    return torch.linspace(-1.5, 1.5, 61, dtype=torch.float32, device="cpu") * max((12.0, *limits))


def _matching(
    function: Callable[[], Tensor], candidates: Iterator[Activation], samples: tuple[Tensor, ...]
) -> Activation | None:
    """The first candidate whose results on `samples` are those of `function`."""
    try:
        result = function().float()
    except (TypeError, RuntimeError):  # it takes other arguments
        return None
    for candidate in candidates:
        expected = candidate(*samples)
        if result.shape == expected.shape and torch.allclose(result, expected, rtol=1e-5, atol=1e-5):
            return candidate
    return None


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
