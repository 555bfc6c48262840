"""Convolutions and recurrences of transformers' layers, over weft's states by slot.

transformers' recurrent layers call a few functions, such as `causal_conv1d_fn`, with whole texts. In a forward of weft
these functions go on from the state of each row's slot instead, and keep the new state. All other code of the layers
stays. Outside of weft's forwards the functions do what they did before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.errors import ModelError
from weft.models.generic.calls import Calls, current
from weft.models.memory import Convolution, Decay, LayerMemory, Recurrence, State
from weft.models.states import LayerStates
from weft.ops.attention import Rows
from weft.ops.recurrence import convolve, recur

NORM_EPS = 1e-6
"""The epsilon of the norm of queries and keys in transformers' delta rules."""


def replace_functions(network: nn.Module) -> None:
    """Replace the functions in the files that define the network's layers, once for each file."""
    for file in {type(layer).__module__ for layer in network.modules()}:
        for name, replacement in _REPLACEMENTS.items():
            original = getattr(sys.modules[file], name, None)
            if original is not None and not hasattr(original, "weft_replacement"):
                setattr(sys.modules[file], name, _in_forwards(original, replacement))


def _in_forwards(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `replacement` in weft's forwards and `original` outside of them."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls = current()
        if calls is None or calls.is_plain:
            return original(*args, **kwargs)
        return replacement(calls, *args, **kwargs)

    call.weft_replacement = True  # type: ignore[attr-defined]
    return call


def _convolve(
    calls: Calls,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """`causal_conv1d_fn`: [1, C, N] and weight [C, taps] -> [1, C, N]."""
    if activation not in (None, "silu", "swish"):
        raise ModelError(f"a convolution has the activation {activation!r}; weft has none or 'silu'")
    if calls.plan is not None:
        calls.plan.append(LayerMemory(state=State(convolutions=(Convolution(*weight.shape),))))
        return torch.zeros_like(hidden_states)
    rows, cache = calls.state()
    x = hidden_states[0].t()
    x = x if x.stride(1) == 1 else x.contiguous()
    return convolve(x, weight, bias, cache.convolutions[0], rows, activation is not None).t()[None]


def _delta_rule(
    calls: Calls,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """The gated delta rule, with a decay for each head or (KDA) for each key dimension. Shapes: query and key
    [1, N, Hk, Dk], value [1, N, Hv, Dv], logarithm of the decay g [1, N, Hv] or [1, N, Hv, Dk], beta [1, N, Hv]."""
    if calls.plan is not None:
        decay = Decay.HEAD if g.dim() == 3 else Decay.KEY
        sizes = value.shape[2], key.shape[2], key.shape[3], value.shape[3]
        calls.plan.append(LayerMemory(state=State(recurrences=(Recurrence(*sizes, decay, is_delta=True),))))
        return torch.zeros_like(value), None
    rows, cache = calls.state()
    query, key = (x[0].float() for x in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPS) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    out = _recur(cache, rows, query, key, value[0].float(), g[0].float().exp(), beta[0].float())
    return out[None].to(value.dtype), None


def _scan(
    calls: Calls,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int = 0,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Tensor:
    """Mamba 2's scan. Shapes: hidden_states [1, N, H, P], steps dt [1, N, H], rates A [H], B and C [1, N, groups, state
    size], D [H]."""
    if calls.plan is not None:
        recurrence = Recurrence(hidden_states.shape[2], B.shape[2], B.shape[3], hidden_states.shape[3])
        calls.plan.append(LayerMemory(state=State(recurrences=(recurrence,))))
        return torch.zeros_like(hidden_states)
    rows, cache = calls.state()
    steps = dt if dt_bias is None else dt + dt_bias
    steps = (_softplus(steps) if dt_softplus else steps).clamp(*dt_limit)[0].float()
    x = hidden_states[0].float()
    values, decay = x * steps.unsqueeze(-1), (steps * A.float()).exp()
    out = _recur(cache, rows, C[0].float(), B[0].float(), values, decay)
    return (out if D is None else out + x * D.float().unsqueeze(-1))[None]


def _selective_scan(
    calls: Calls,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> Tensor:
    """Mamba 1's scan: a recurrence of one head, whose keys have the size of the state and whose values are the
    channels. Shapes: hidden_states, steps dt and gates z [1, channels, N], rates A [channels, state size], B and C
    [1, state size, N], D [channels]."""
    channels, key_size = A.shape
    if calls.plan is not None:
        recurrence = Recurrence(1, 1, key_size, channels, Decay.ELEMENT)
        calls.plan.append(LayerMemory(state=State(recurrences=(recurrence,))))
        return torch.zeros_like(hidden_states)
    number = calls.num_calls
    rows, cache = calls.state()
    # Computed once, outside of captures, because settling a slot's state reads them, too.
    if number not in calls.rates:
        calls.rates[number] = A.float().t().contiguous()[None]
    steps = dt[0].t() if delta_bias is None else dt[0].t() + delta_bias
    steps = (_softplus(steps) if delta_softplus else steps).float()
    x = hidden_states[0].t().float()
    query, key = (part[0].t().unsqueeze(1).float() for part in (C, B))
    value, steps = (x * steps).unsqueeze(1), steps.unsqueeze(1)
    out = _recur(cache, rows, query, key, value, steps, rates=calls.rates[number])[:, 0]
    if D is not None:
        out = out + x * D.float()
    if z is not None:
        out = out * F.silu(z[0].t())
    return out.t()[None]


def _recur(
    cache: LayerStates,
    rows: Rows,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor | None = None,
    rates: Tensor | None = None,
) -> Tensor:
    """`recur` for tensors with any strides."""
    # Tokens may be apart, so a view of a wider tensor needs no copy.
    inputs = (query, key, value, decay)
    query, key, value, decay = (x if x[:1].is_contiguous() else x.contiguous() for x in inputs)
    beta = None if beta is None else beta.contiguous()
    return recur(query, key, value, decay, beta, cache.recurrences[0], rows, rates)


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)). Captured, it runs natively, and torch's softplus would not."""
    return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _scan,
    "mamba_selective_scan": _selective_scan,
    "torch_chunk_gated_delta_rule": _delta_rule,
}
"""Names of functions in transformers' modules, and what replaces them."""
