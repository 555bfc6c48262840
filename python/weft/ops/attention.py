"""Attention of one layer over paged KV, fused with query and key norms, rotary embedding and the KV writes.

Letters: B rows, N new tokens in total, H query heads, Hkv key/value heads, D head size, P pages per row. The cache of
a layer is [pages, page_size, 2, Hkv, D]: a token's keys, then its values. Page 0 fills the page tables of padding rows,
and is never written. Positions beyond a row's page table are neither read nor written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft import _core
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

    `states` maps the rows to the states of layers that have one; None if the model has none."""

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

    def __post_init__(self) -> None:
        # Check shapes and dtypes here, because a kernel can't report a mistake. Values are on the device and are not
        # checked.
        batch = self.page_table.shape[0]
        vectors = ((self.base, batch), (self.count, batch), (self.starts, batch + 1), (self.live, 1))
        if self.page_table.dtype != torch.int32 or self.page_table.dim() != 2:
            raise TypeError(f"page_table is int32 [B, P], not {_described(self.page_table)}")
        for tensor, size in vectors:
            if tensor is not None and (tensor.dtype != torch.int64 or tensor.shape != (size,)):
                raise TypeError(
                    f"base, count, starts and live are int64, here [{size}], not {_described(tensor)}"
                )

    @property
    def positions(self) -> Tensor:
        """The positions of the new tokens, int64 [B, width], if all rows have `width` tokens."""
        first = self.base if self.count is None else self.base + self.count
        return first[:, None] + torch.arange(self.offset, self.offset + self.width, device=first.device)


@dataclass(frozen=True)
class Heads:
    """The heads of a layer.

    count: the number of query heads. rotary: float32 [max_positions, D/2, 2] (cos, sin); later positions use the last
    entry. norms: weights [D] of the query norm and of the key norm.
    """

    count: int
    rotary: Tensor
    scale: float
    norms: tuple[Tensor, Tensor] | None = None
    eps: float = 0.0


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


def attend(qkv: Tensor, cache: Tensor, rows: Rows, heads: Heads, window: Window = NO_WINDOW) -> Tensor:
    """Causal attention [N, H * D] of the queries in `qkv` [N, (H + 2 Hkv) * D]. Writes its keys and values to `cache`.

    Rotary embedding rotates the adjacent pairs (0, 1), (2, 3), … of a head. The query at position p sees the keys 0..p
    that are in its `window`. Pages without a visible key may belong to another row. The contents of `qkv` are undefined
    afterwards.
    """
    out = qkv.new_empty(qkv.shape[0], heads.count * cache.shape[4])
    q_norm, k_norm = heads.norms or (None, None)
    _ATTEND(
        qkv, cache, rows.page_table, rows.base, rows.count, rows.starts, rows.width, rows.offset, rows.settled,
        rows.num_short, rows.short_width, heads.rotary, q_norm, k_norm, heads.eps, heads.count, heads.scale,
        window.size, window.sinks, out,
    )  # fmt: skip
    return out


def _attend_cpu(
    qkv: Tensor,
    cache: Tensor,
    page_table: Tensor,
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    settled: bool,
    num_short: int,
    short_width: int,
    rotary: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    num_heads: int,
    scale: float,
    window: int,
    sinks: int,
    out: Tensor,
) -> None:
    is_plain = qkv.dtype is torch.float32 and qkv.is_contiguous() and cache.dtype is torch.float32
    require(is_plain, f"on the CPU qkv and cache are float32, contiguous; got {qkv.dtype} and {cache.dtype}")
    page_table = page_table.contiguous()
    _, page_size, _, num_kv_heads, head_dim = cache.shape
    kernel = _core.attend_cpu(
        qkv.data_ptr(), rotary.data_ptr(), address(q_norm), address(k_norm), cache.data_ptr(), out.data_ptr(),
        page_table.data_ptr(), base.data_ptr(), address(count), address(starts), page_table.shape[0], width, offset,
        num_heads, num_kv_heads, head_dim, page_size, page_table.shape[1], rotary.shape[0], window, sinks,
        eps, scale, torch.get_num_threads(),
    )  # fmt: skip
    run_kernel("attend", kernel)


def _attend_cuda(qkv: Tensor, *args: Any) -> None:
    with device_of(qkv):
        triton_kernels("attention_triton").attend(qkv, *args)


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


_ATTEND = register(
    "attend(Tensor(a!) qkv, Tensor(b!) cache, Tensor page_table, Tensor base, Tensor? count, Tensor? starts, int width,"
    " int offset, bool settled, int num_short, int short_width, Tensor rotary, Tensor? q_norm, Tensor? k_norm,"
    " float eps, int num_heads, float scale, int window, int sinks, Tensor(c!) out) -> ()",
    cpu=_attend_cpu,
    cuda=_attend_cuda,
)
