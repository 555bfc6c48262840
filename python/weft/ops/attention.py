"""Attention of one layer over paged KV, fused with query and key norms, rotary embedding and the KV writes.

Letters: B rows, N new tokens in total, H query heads, Hkv key/value heads, Dk and Dv sizes of a key and a value, P
pages per row. Page 0 fills the page tables of padding rows, and is never written. Positions beyond a row's page table
are neither read nor written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.ops.cached import CODES, first_scale
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.state_rows import StateRows


@dataclass(frozen=True)
class Rows:
    """The new tokens of B rows: their positions and pages, on the device.

    Row b has `width` tokens, or with `starts` (int64 [B + 1]) the tokens starts[b]..starts[b+1]-1, at most `width`. The
    first one is at position base[b] (+ count[b]) + offset; the others follow. `base` and `count` are int64 [B].
    `page_table` is int32 [B, P], the pages of each row in order. A row whose first new token is on page 0 pads a batch;
    its output is undefined.

    With `starts` a row may have no tokens. The first `num_short` rows then have at most `short_width` tokens each, and
    may read keys that the other rows of the call write.

    `live` (int64 [1]) is the number of live tokens of the call, for a layer's other operations: in those, later rows
    are padding. Attention follows `starts` alone.

    With `settled` the caller promises that attention may read old keys while earlier kernels still run. The last
    `read_slots_` on this stream, or work before it, must have written `base`, `page_table` and all keys before `base`.
    Work after that must not write them. `count` and `offset` must not be negative.

    `states` maps the rows to the states of layers that have one; None if the model has none. `windowed_table` (int32
    [B, P]) are the rows' pages in the layers with `KVLayer.is_windowed`."""

    page_table: Tensor
    base: Tensor
    width: int
    count: Tensor | None = None
    offset: int = 0
    starts: Tensor | None = None
    settled: bool = False
    live: Tensor | None = None
    num_short: int = 0
    short_width: int = 0
    states: StateRows | None = None
    windowed_table: Tensor | None = None

    def __post_init__(self) -> None:
        # Check shapes and dtypes here, because a kernel can't report a mistake. Values are on the device and are not
        # checked.
        batch = self.page_table.shape[0]
        vectors = ((self.base, batch), (self.count, batch), (self.starts, batch + 1), (self.live, 1))
        for table in (self.page_table, self.windowed_table):
            if table is not None and (table.dtype != torch.int32 or table.dim() != 2 or len(table) != batch):
                raise TypeError(f"page tables are int32 [B, P], not {_described(table)}")
        for tensor, size in vectors:
            if tensor is not None and (tensor.dtype != torch.int64 or tensor.shape != (size,)):
                raise TypeError(
                    f"base, count, starts and live are int64, here [{size}], not {_described(tensor)}"
                )


@dataclass(frozen=True)
class Heads:
    """The heads of a layer.

    count: the number of query heads.
    rotary: float32 [max_positions, R, 2] (cos, sin) with R <= Dk / 2; later positions use the last entry. 2R dimensions
        of queries and keys are rotated. None: none are, or the caller has rotated them.
    scale: the factor of the scores.
    norms: weights of the query norm and of the key norm, before the rotation. Weights [Dk] are those of each head. With
        weights [H * Dk] or [Hkv * Dk], the mean of squares is that of all the token's queries or keys. On CUDA they may
        be float32 whatever the dtype of qkv is.
    softcap: above 0, a score s becomes softcap * tanh(s / softcap), after the scale.
    sink_logits: float32 [H]. Each softmax of head h also sums exp(sink_logits[h]), for a key without a value. These are
        not the sinks of a `Window`, which are keys of the text.
    first_rotated: the first of the rotated dimensions, an even number.
    """

    count: int
    rotary: Tensor | None
    scale: float
    norms: tuple[Tensor, Tensor] | None = None
    eps: float = 0.0
    softcap: float = 0.0
    sink_logits: Tensor | None = None
    first_rotated: int = 0

    def __post_init__(self) -> None:
        if self.first_rotated < 0 or self.first_rotated % 2:
            raise ValueError(f"the first rotated dimension is even, not {self.first_rotated}")
        logits = self.sink_logits
        if logits is not None and (logits.dtype != torch.float32 or logits.shape != (self.count,)):
            raise TypeError(f"sink_logits is float32 [{self.count}], not {_described(logits)}")


@dataclass(frozen=True)
class Window:
    """An attention window: a query sees at most `size` keys, its own included. These are the first `sinks` keys of the
    text (attention sinks), and the latest keys up to the query. A `size` of 0 means no limit."""

    size: int = 0
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.size < 0 or not 0 <= self.sinks < max(self.size, 1):
            raise ValueError(f"of a window of {self.size} keys {self.sinks} can't be sinks")

    @property
    def reach(self) -> int:
        """The size of the window without sinks. The query at position p sees keys p - reach + 1..p, and the sinks. 0
        means no limit."""
        return self.size - self.sinks


NO_WINDOW = Window()


class KVLayer(NamedTuple):
    """The paged keys and values of a layer, and its attention window: `keys` [pages, page_size, Hkv, Dk] and `values`
    [pages, page_size, Hkv, Dv], views of one memory. A token has Hkv keys, then Hkv values, and in int8 then their
    scales (`weft.ops.cached`). With `values_in_keys`, no values are stored: a value is the first Dv elements of its key
    (multi-head latent attention), and `values` begin at the address of `keys`. `weft.models.memory.Pages` makes such
    views.

    is_windowed: whether the layer's pages are those of `Rows.windowed_table`."""

    keys: Tensor
    values: Tensor
    window: Window = NO_WINDOW
    values_in_keys: bool = False
    is_windowed: bool = False


def attend(qkv: Tensor, layer: KVLayer, rows: Rows, heads: Heads, gate: Tensor | None = None) -> Tensor:
    """Causal attention [N, H * Dv] of the queries in `qkv`. Writes its keys and values to the pages of `layer`.

    Keys and values are rounded to the dtype of the pages when they are written, keys after their norm and rotation.
    Each query of the call sees them rounded. So the result for a token does not depend on the calls that read its text.

    `qkv` is [N, H * Dk + Hkv * Dk + Hkv * Dv]: queries, keys, values; without the values if they are parts of the keys.
    Rotary embedding rotates the adjacent pairs (0, 1), (2, 3), … of a head. The query at position p sees the keys 0..p
    that are in the layer's window. Pages without a visible key may belong to another row. The contents of `qkv` are
    undefined afterwards.

    With `gate` [N, H * Dv], the result is multiplied by sigmoid(gate). Rows of `qkv` and of `gate` may lie apart.
    """
    keys, values, window, values_in_keys, is_windowed = layer
    page_table = rows.windowed_table if is_windowed else rows.page_table
    num_kv_heads, key_size, value_size = *keys.shape[2:], values.shape[3]
    width = (heads.count + num_kv_heads) * key_size + (0 if values_in_keys else num_kv_heads * value_size)
    if qkv.shape[1] != width:
        raise TypeError(f"for these heads a token of qkv has {width} elements, not {qkv.shape[1]}")
    if heads.rotary is not None and heads.first_rotated + 2 * heads.rotary.shape[1] > key_size:
        after = f" after {heads.first_rotated}" if heads.first_rotated else ""
        raise TypeError(
            f"rotary has {heads.rotary.shape[1]} pairs, but a key has {key_size - heads.first_rotated} elements{after}"
        )
    out = qkv.new_empty(qkv.shape[0], heads.count * value_size)
    if gate is not None and gate.shape != out.shape:
        raise TypeError(f"gate is {list(out.shape)} for these heads, not {list(gate.shape)}")
    q_norm, k_norm = heads.norms or (None, None)
    _check_norm(q_norm, key_size, heads.count)
    _check_norm(k_norm, key_size, num_kv_heads)
    _ATTEND(
        qkv, keys, values, page_table, rows.base, rows.count, rows.starts, rows.width, rows.offset, rows.settled,
        rows.num_short, rows.short_width, heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale,
        heads.softcap, heads.sink_logits, window.size, window.sinks, out, heads.first_rotated, gate,
    )  # fmt: skip
    return out


def _check_norm(norm: Tensor | None, key_size: int, num_heads: int) -> None:
    if norm is not None and norm.shape not in ((key_size,), (num_heads * key_size,)):
        raise TypeError(
            f"a norm of {num_heads} heads has {key_size} or {num_heads * key_size} weights, not {list(norm.shape)}"
        )


def normed_heads(norm: Tensor | None, keys: Tensor) -> int:
    """The number of heads over which `norm` takes the mean of squares."""
    return 1 if norm is None else len(norm) // keys.shape[3]


def token_stride(keys: Tensor) -> int:
    """The elements from a token's keys to the next token's. `keys.stride(1)` may be another number if a page has one
    token."""
    return keys.stride(0) // keys.shape[1]


def _attend_cpu(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    settled: bool,
    num_short: int,
    short_width: int,
    rotary: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    num_heads: int,
    scale: float,
    softcap: float,
    sink_logits: Tensor | None,
    window: int,
    sinks: int,
    out: Tensor,
    first_rotated: int = 0,
    gate: Tensor | None = None,
) -> None:
    is_plain = qkv.dtype is torch.float32 and (gate is None or gate.dtype is torch.float32)
    require(is_plain, f"on the CPU qkv and gates are float32; got {qkv.dtype}")
    require(
        keys.dtype in CODES,
        f"on the CPU cached keys are {', '.join(str(each).removeprefix('torch.') for each in CODES)}; got {keys.dtype}",
    )
    _check_rows(qkv, gate)
    page_table = page_table.contiguous()
    _, page_size, num_kv_heads, key_size = keys.shape
    values_begin = values.data_ptr() - keys.data_ptr()
    num_numbers = num_kv_heads * (key_size + (values.shape[3] if values_begin else 0))
    rotary_rows, rotary_pairs = (0, 0) if rotary is None else rotary.shape[:2]
    kernel = _core.attend_cpu(
        qkv.data_ptr(), address(rotary), address(q_norm), address(k_norm), address(sink_logits), address(gate),
        keys.data_ptr(), out.data_ptr(), page_table.data_ptr(), base.data_ptr(), address(count), address(starts),
        page_table.shape[0], width, offset, num_heads, num_kv_heads, key_size, values.shape[3], page_size,
        CODES[keys.dtype], token_stride(keys) * keys.itemsize, values_begin, first_scale(num_numbers),
        page_table.shape[1], rotary_rows, rotary_pairs, first_rotated, normed_heads(q_norm, keys),
        normed_heads(k_norm, keys), window, sinks, qkv.stride(0),
        0 if gate is None else gate.stride(0), eps, scale, softcap, torch.get_num_threads(),
    )  # fmt: skip
    run_kernel("attend", kernel)


def _check_rows(qkv: Tensor, gate: Tensor | None) -> None:
    for tensor in (qkv, gate):
        require(
            tensor is None or tensor.stride(1) == 1, "elements of a token of qkv and gate must be contiguous"
        )


def _attend_cuda(qkv: Tensor, *args: Any) -> None:
    with device_of(qkv):
        triton_kernels("attention_triton").attend(qkv, *args)


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


_ATTEND = register(
    "attend(Tensor(a!) qkv, Tensor(b!) keys, Tensor(c!) values, Tensor page_table, Tensor base, Tensor? count,"
    " Tensor? starts, int width, int offset, bool settled, int num_short, int short_width, Tensor? rotary,"
    " Tensor? q_norm, Tensor? k_norm, float eps, int num_heads, float scale, float softcap, Tensor? sink_logits,"
    " int window, int sinks, Tensor(d!) out, int first_rotated=0, Tensor? gate=None) -> ()",
    cpu=_attend_cpu,
    cuda=_attend_cuda,
)
