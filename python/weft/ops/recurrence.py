"""Operations of layers that keep a state by slot: short convolutions and linear recurrences, and moves of states.

Letters: B rows, N new tokens in total, S + 1 slots (the last one pads), R storage rows, D drafts whose inputs are kept,
C channels, Hk and Hv heads of keys and of values, Dk and Dv their sizes.

A storage row holds the state after some token of a text. A slot's state is the state after the last token whose place
in the text is certain. After it come the inputs of the drafts of the last iteration. The next call applies those of the
first `owed` drafts, the accepted ones. So a refused draft costs nothing, and no state is copied.

The bits of a row's result depend on its text alone. A text may be cut into calls and rows in any way, be alone or in a
batch, and be read as a prompt or as drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.errors import InputError
from weft.ops.attention import Rows
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.state_rows import StateRows

COLUMNS = 16
"""The number of value dimensions in a block of a recurrent state."""

HEAD, KEY, ELEMENT = range(3)
"""The kernels' numbers for the shapes of a decay (`weft.models.memory.Decay`)."""


class ConvolutionCache(NamedTuple):
    """The last inputs of a convolution: `window` [R, taps - 1, C], those before the next token, and of the drafts after
    it `inputs` [S+1, D, C]. Float32, strided views of `weft.models.states.States`."""

    window: Tensor
    inputs: Tensor


@dataclass
class RecurrentCache:
    """The states of a recurrence: `base` [R, Hv, ceil(Dv / 16), Dk, 16], in blocks of 16 value dimensions, and of the
    drafts after it `decay` [S+1, D, Hv (, Dk or Dv)], `key` [S+1, D, Hk, Dk] and `value` [S+1, D, Hv, Dv], which is u.
    Float32, strided views of `weft.models.states.States`. `rates` are those of `recur`, which sets them."""

    base: Tensor
    decay: Tensor
    key: Tensor
    value: Tensor
    rates: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The storage."""
        return self.base, self.decay, self.key, self.value


@dataclass(frozen=True)
class DeltaGates:
    """Gates of a delta rule that `recur` applies itself. `rates` and `bias` are float32 [Hv]."""

    rates: Tensor
    bias: Tensor


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: ConvolutionCache, rows: Rows, silu: bool
) -> Tensor:
    """Convolve each channel of `x` [N, C] over the positions of its text, and keep the last inputs in `cache`.

    Returns [N, C]: the sum of weight[c, j] * x[n - taps + 1 + j, c] over the taps j, plus `bias` [C]; with `silu` its
    SiLU. Inputs before a text's first token are 0. On the CPU `x` is float32. `weight` [C, taps] is float32 and may
    have any strides; the kernel is fastest if its transpose is contiguous. Rows of `x` may be apart."""
    states = _states(rows)
    out = x.new_empty(x.shape)
    _CONVOLVE(
        x, weight, bias, *cache, rows.base, rows.count, rows.starts, rows.width, rows.offset, states.slots,
        states.source, states.target, states.owed, states.num_speculative, states.saves, silu, out,
    )  # fmt: skip
    return out


def recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor | None,
    cache: RecurrentCache,
    rows: Rows,
    rates: Tensor | None = None,
    gates: DeltaGates | None = None,
) -> Tensor:
    """Go on with a linear recurrence by the N tokens of `rows`, and keep its state in `cache`.

    For each token and each head h, with the query and key of head h // (Hv / Hk):

        S = decay * S
        u = beta * (v - S^T k), or v without `beta`
        S = S + k u^T
        output = S^T q

    q, k: [N, Hk, Dk]. v: [N, Hv, Dv]. beta: [N, Hv], for the delta rule. decay: a factor for each head [N, Hv] or for
    each key dimension [N, Hv, Dk]. With `rates` [Hv, Dk, Dv] it is [N, Hv, Dv], and the factor is exp(decay * rates);
    then there is no delta rule. On the CPU all are float32. Tokens may be apart; the other dimensions are contiguous.
    Returns [N, Hv, Dv].

    With `gates` (Qwen3-Next), decay and beta are [N, Hv] before their gates, and queries and keys are not normed:

        decay = exp(-gates.rates * softplus(decay + gates.bias)),  beta = sigmoid(beta)
        q = q / sqrt(sum(q²) + 1e-6) / sqrt(Dk),  k = k / sqrt(sum(k²) + 1e-6)
    """
    states = _states(rows)
    out = v.new_empty(v.shape)
    cache.rates = rates
    gate_rates, gate_bias = (None, None) if gates is None else (gates.rates, gates.bias)
    _RECUR(
        q, k, v, decay, beta, rates, gate_rates, gate_bias, *cache.tensors, rows.base, rows.count, rows.starts,
        rows.width, rows.offset, states.slots, states.source, states.target, states.owed, states.num_speculative,
        states.saves, out,
    )  # fmt: skip
    return out


def settle_window(
    cache: ConvolutionCache, target: Tensor, slots: Tensor, targets: Tensor, counts: Tensor
) -> None:
    """Write the windows of `slots`, after the first `counts` drafts, to storage rows `targets`. All are int64 [n],
    `target` [S+1] as in `StateRows`."""
    _SETTLE_WINDOW(*cache, target, slots, targets, counts)


def settle_recurrence(
    cache: RecurrentCache, target: Tensor, slots: Tensor, targets: Tensor, counts: Tensor
) -> None:
    """Write the states of `slots`, with the inputs of the first `counts` drafts applied, to storage rows `targets`. All
    are int64 [n], `target` [S+1] as in `StateRows`."""
    _SETTLE_RECURRENCE(*cache.tensors, cache.rates, target, slots, targets, counts)


def open_states(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor) -> None:
    """Let each of `slots` [n] begin a text: it owes nothing, and is read from where it is written."""
    _OPEN(source, target, owed, slots)


def load_states(
    storage: Tensor, source: Tensor, target: Tensor, owed: Tensor, sources: Tensor, slots: Tensor
) -> None:
    """Copy the storage rows `sources` [n] of `storage` [R, floats] to the targets of `slots` [n], which then owe
    nothing."""
    _LOAD(storage, source, target, owed, sources, slots)


def branch_states(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor, parents: Tensor) -> None:
    """Make `slots` [n] the children of the slots `parents` [n]: each reads what its parent wrote last, and writes its
    other storage row. A slot may be a parent of several slots."""
    _BRANCH(source, target, owed, slots, parents)


def decay_kind(decay: Tensor, rates: Tensor | None) -> int:
    """The shape of a decay as the kernels number it, from `recur`'s arguments."""
    if rates is not None:
        return ELEMENT
    return HEAD if decay.dim() == 2 else KEY


def _states(rows: Rows) -> StateRows:
    require(
        rows.states is not None,
        "a layer with a state needs rows with `states` (weft.models.states.States.rows)",
    )
    assert rows.states is not None
    return rows.states


def _check_tokens(name: str, tensor: Tensor, num_tokens: int, shape: Sequence[int]) -> None:
    """Raise InputError unless `tensor` is float32 [num_tokens, *shape]. Each token is contiguous; tokens may be apart,
    or the same one (stride 0)."""
    contiguous, step = True, 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        contiguous &= size == 1 or stride == step
        step *= size
    if tensor.dtype is torch.float32 and tensor.shape == (num_tokens, *shape) and contiguous:
        return
    raise InputError(
        f"on the CPU {name} is float32 {[num_tokens, *shape]}, and contiguous within a token; "
        f"got {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
    )


def _state_rows(
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    slots: Tensor,
    source: Tensor,
    target: Tensor,
    owed: Tensor,
    num_speculative: int,
    saves: Tensor | None,
) -> _core.StateRows:
    return _core.state_rows(
        base.data_ptr(), address(count), address(starts), slots.data_ptr(), source.data_ptr(), target.data_ptr(),
        owed.data_ptr(), address(saves), slots.shape[0], width, offset, num_speculative, owed.shape[0],
    )  # fmt: skip


def _convolution_cache(window: Tensor, inputs: Tensor) -> _core.ConvolutionCache:
    require(
        window.dtype is inputs.dtype is torch.float32 and window.stride()[1:] == (window.shape[2], 1),
        "window and inputs of a convolution are float32 views of States",
    )
    return _core.convolution_cache(
        window.data_ptr(), inputs.data_ptr(), window.stride(0), inputs.stride(0), inputs.stride(1),
        inputs.shape[1], window.shape[2], window.shape[1] + 1,
    )  # fmt: skip


def _recurrent_cache(base: Tensor, decay: Tensor, key: Tensor, value: Tensor) -> _core.RecurrentCache:
    require(
        base.dtype is value.dtype is torch.float32 and base.stride(3) == COLUMNS,
        "the cache of a recurrence is float32 views of States",
    )
    return _core.recurrent_cache(
        base.data_ptr(), decay.data_ptr(), key.data_ptr(), value.data_ptr(), base.stride(0), value.stride(0),
        value.stride(1), value.shape[1], base.shape[1], key.shape[2], base.shape[3], value.shape[3],
    )  # fmt: skip


def _convolve_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    inputs: Tensor,
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    slots: Tensor,
    source: Tensor,
    target: Tensor,
    owed: Tensor,
    num_speculative: int,
    saves: Tensor | None,
    silu: bool,
    out: Tensor,
) -> None:
    _check_tokens("x", x, out.shape[0], window.shape[2:])
    require(
        weight.dtype is torch.float32 and weight.shape == (window.shape[2], window.shape[1] + 1),
        f"weight is float32 [{window.shape[2]}, {window.shape[1] + 1}], not {weight.dtype} {list(weight.shape)}",
    )
    rows = _state_rows(
        base, count, starts, width, offset, slots, source, target, owed, num_speculative, saves
    )
    kernel = _core.convolve_cpu(
        rows, _convolution_cache(window, inputs), x.data_ptr(), weight.data_ptr(), address(bias), out.data_ptr(),
        x.stride(0), weight.stride(0), weight.stride(1), silu, torch.get_num_threads(),
    )  # fmt: skip
    run_kernel("convolve", kernel)


def _recur_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor | None,
    rates: Tensor | None,
    gate_rates: Tensor | None,
    gate_bias: Tensor | None,
    cache_base: Tensor,
    cache_decay: Tensor,
    cache_key: Tensor,
    cache_value: Tensor,
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    slots: Tensor,
    source: Tensor,
    target: Tensor,
    owed: Tensor,
    num_speculative: int,
    saves: Tensor | None,
    out: Tensor,
) -> None:
    num_tokens, keys, heads = out.shape[0], cache_key.shape[2:], cache_value.shape[2]
    _check_tokens("q", q, num_tokens, keys)
    _check_tokens("k", k, num_tokens, keys)
    _check_tokens("v", v, num_tokens, cache_value.shape[2:])
    _check_tokens("decay", decay, num_tokens, cache_decay.shape[2:])
    if beta is not None:
        _check_tokens("beta", beta, num_tokens, (heads,))
    if rates is not None:
        _check_tokens("rates", rates, heads, (keys[1], cache_value.shape[3]))
    require(rates is None or beta is None, "a decay with rates has no delta rule")
    if gate_rates is not None and gate_bias is not None:
        require(
            beta is not None and decay.dim() == 2,
            "gates are those of a delta rule with a decay for each head",
        )
        for gate in (gate_rates, gate_bias):
            require(
                gate.dtype is torch.float32 and gate.shape == (heads,) and gate.is_contiguous(),
                f"rates and bias of gates are float32 [{heads}], not {gate.dtype} {list(gate.shape)}",
            )
    rows = _state_rows(
        base, count, starts, width, offset, slots, source, target, owed, num_speculative, saves
    )
    kernel = _core.recur_cpu(
        rows, _recurrent_cache(cache_base, cache_decay, cache_key, cache_value), decay_kind(decay, rates),
        q.data_ptr(), k.data_ptr(), v.data_ptr(), decay.data_ptr(), address(beta), address(rates),
        address(gate_rates), address(gate_bias), out.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
        decay.stride(0), 0 if beta is None else beta.stride(0), torch.get_num_threads(),
    )  # fmt: skip
    run_kernel("recur", kernel)


def _settle_window_cpu(
    window: Tensor, inputs: Tensor, target: Tensor, slots: Tensor, targets: Tensor, counts: Tensor
) -> None:
    kernel = _core.settle_window_cpu(
        _convolution_cache(window, inputs), target.data_ptr(), slots.data_ptr(), targets.data_ptr(),
        counts.data_ptr(), slots.shape[0], target.shape[0],
    )  # fmt: skip
    run_kernel("settle_window", kernel)


def _settle_recurrence_cpu(
    base: Tensor,
    decay: Tensor,
    key: Tensor,
    value: Tensor,
    rates: Tensor | None,
    target: Tensor,
    slots: Tensor,
    targets: Tensor,
    counts: Tensor,
) -> None:
    kernel = _core.settle_recurrence_cpu(
        _recurrent_cache(base, decay, key, value), decay_kind(decay[0], rates), address(rates), target.data_ptr(),
        slots.data_ptr(), targets.data_ptr(), counts.data_ptr(), slots.shape[0], target.shape[0],
        torch.get_num_threads(),
    )  # fmt: skip
    run_kernel("settle_recurrence", kernel)


def _states_call(storage: Tensor | None, source: Tensor, target: Tensor, owed: Tensor) -> _core.StatesCall:
    return _core.states_call(
        address(storage), source.data_ptr(), target.data_ptr(), owed.data_ptr(),
        0 if storage is None else storage.stride(0), owed.shape[0], torch.get_num_threads(),
    )  # fmt: skip


def _open_cpu(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor) -> None:
    call = _states_call(None, source, target, owed)
    run_kernel("open_states", _core.open_states_cpu(call, slots.data_ptr(), slots.shape[0]))


def _load_cpu(
    storage: Tensor, source: Tensor, target: Tensor, owed: Tensor, sources: Tensor, slots: Tensor
) -> None:
    call = _states_call(storage, source, target, owed)
    kernel = _core.load_states_cpu(call, sources.data_ptr(), slots.data_ptr(), slots.shape[0])
    run_kernel("load_states", kernel)


def _branch_cpu(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor, parents: Tensor) -> None:
    call = _states_call(None, source, target, owed)
    kernel = _core.branch_states_cpu(call, slots.data_ptr(), parents.data_ptr(), slots.shape[0])
    run_kernel("branch_states", kernel)


def _convolve_cuda(x: Tensor, *args: Any) -> None:
    with device_of(x):
        triton_kernels("recurrence_triton").convolve(x, *args)


def _recur_cuda(q: Tensor, *args: Any) -> None:
    with device_of(q):
        triton_kernels("recurrence_triton").recur(q, *args)


def _settle_window_cuda(window: Tensor, *args: Any) -> None:
    with device_of(window):
        triton_kernels("recurrence_triton").settle_window(window, *args)


def _settle_recurrence_cuda(base: Tensor, *args: Any) -> None:
    with device_of(base):
        triton_kernels("recurrence_triton").settle_recurrence(base, *args)


def _open_cuda(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor) -> None:
    source.index_copy_(0, slots, target.index_select(0, slots))
    owed.index_fill_(0, slots, 0)


def _load_cuda(
    storage: Tensor, source: Tensor, target: Tensor, owed: Tensor, sources: Tensor, slots: Tensor
) -> None:
    storage.index_copy_(0, target.index_select(0, slots), storage.index_select(0, sources))
    _open_cuda(source, target, owed, slots)


def _branch_cuda(source: Tensor, target: Tensor, owed: Tensor, slots: Tensor, parents: Tensor) -> None:
    source.index_copy_(0, slots, target.index_select(0, parents))
    before = target.index_select(0, slots)
    target.index_copy_(0, slots, torch.where(before == slots, slots + owed.shape[0], slots))
    owed.index_fill_(0, slots, 0)


_ROWS = (
    "Tensor base, Tensor? count, Tensor? starts, int width, int offset, Tensor slots, Tensor source, Tensor target,"
    " Tensor owed, int num_speculative, Tensor? saves"
)
_CONVOLVE = register(
    f"convolve(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) window, Tensor(b!) inputs, {_ROWS}, bool silu,"
    " Tensor(c!) out) -> ()",
    cpu=_convolve_cpu,
    cuda=_convolve_cuda,
)
_RECUR = register(
    "recur(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? beta, Tensor? rates, Tensor? gate_rates,"
    " Tensor? gate_bias, Tensor(a!) cache_base,"
    f" Tensor(b!) cache_decay, Tensor(c!) cache_key, Tensor(d!) cache_value, {_ROWS}, Tensor(e!) out) -> ()",
    cpu=_recur_cpu,
    cuda=_recur_cuda,
)
_SETTLE_WINDOW = register(
    "settle_window(Tensor(a!) window, Tensor inputs, Tensor target, Tensor slots, Tensor targets, Tensor counts)"
    " -> ()",
    cpu=_settle_window_cpu,
    cuda=_settle_window_cuda,
)
_SETTLE_RECURRENCE = register(
    "settle_recurrence(Tensor(a!) base, Tensor decay, Tensor key, Tensor value, Tensor? rates, Tensor target,"
    " Tensor slots, Tensor targets, Tensor counts) -> ()",
    cpu=_settle_recurrence_cpu,
    cuda=_settle_recurrence_cuda,
)
_OPEN = register(
    "open_states(Tensor(a!) source, Tensor target, Tensor(b!) owed, Tensor slots) -> ()",
    cpu=_open_cpu,
    cuda=_open_cuda,
)
_LOAD = register(
    "load_states(Tensor(a!) storage, Tensor(b!) source, Tensor target, Tensor(c!) owed, Tensor sources,"
    " Tensor slots) -> ()",
    cpu=_load_cpu,
    cuda=_load_cuda,
)
_BRANCH = register(
    "branch_states(Tensor(a!) source, Tensor(b!) target, Tensor(c!) owed, Tensor slots, Tensor parents) -> ()",
    cpu=_branch_cpu,
    cuda=_branch_cuda,
)
