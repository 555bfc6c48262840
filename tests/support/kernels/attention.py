"""Cases of attention over pages, with a textbook implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from support.kernels.cached import narrowed
from weft.models.memory import Pages
from weft.models.rope import Rope
from weft.ops.attention import NO_WINDOW, Heads, KVLayer, Rows, Window
from weft.ops.cached import CACHED

Attend = Callable[[Tensor, KVLayer, Rows, Heads, Tensor | None], Tensor]

EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """Rows of these lengths, new tokens included. Each row has `width` new tokens, or its entry of `widths`.
    `shares` is the number of splits over the keys in the kernel for few tokens. Keys have `dim` elements, values
    `value_dim` (default: as many), or they are the first `value_dim` of the keys, if `in_keys`. `pairs` is the number
    of rotated pairs (default: all), from dimension `first` on; 0 means no rotation. `logits`: whether heads have sink
    logits. `joint`: norms are over all heads of a token, with weights in float32. `gated`: results have gates.
    `apart`: tokens lie apart in memory, with NaN between them. `cached` is the dtype of the cache by its name (default:
    `dtype`)."""

    lengths: tuple[int, ...]
    width: int = 0
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16
    page: int = 16
    dtype: str = "float32"
    shares: int = 1
    norm: bool = False
    widths: tuple[int, ...] = ()
    window: int = 0
    sinks: int = 0
    value_dim: int = 0
    in_keys: bool = False
    pairs: int | None = None
    softcap: float = 0.0
    logits: bool = False
    first: int = 0
    joint: bool = False
    gated: bool = False
    apart: bool = False
    cached: str = ""

    def __str__(self) -> str:
        kind = f"t{'+'.join(map(str, self.widths)) or self.width}"
        dim = f"{self.dim}{'>' if self.in_keys else '+'}{self.value_dim}" if self.value_dim else self.dim
        parts = [*self.lengths, kind, self.heads, self.kv_heads, dim, self.dtype]
        parts += [f"w{self.window}+{self.sinks}"] if self.window else []
        parts += [f"r{self.pairs}"] if self.pairs is not None else []
        parts += [f"from{self.first}"] if self.first else []
        parts += [f"c{self.softcap:g}"] if self.softcap else []
        marks = {"l": self.logits, "n": self.norm, "j": self.joint, "g": self.gated, "a": self.apart}
        parts += [self.cached] if self.cached else []
        return "-".join(map(str, parts + [mark for mark, is_set in marks.items() if is_set]))

    @property
    def memory(self) -> Pages:
        sizes = self.dim, self.value_dim or self.dim, self.in_keys
        return Pages(self.kv_heads, *sizes, Window(self.window, self.sinks))

    @property
    def counts(self) -> tuple[int, ...]:
        return self.widths or (self.width,) * len(self.lengths)

    @property
    def tolerance(self) -> float:
        return {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}[self.dtype]


FEW = (
    Case((1,), 1),
    Case((200,), 1, heads=6, kv_heads=3, dim=32, shares=4),
    Case((150, 7, 33), 4, shares=4),
    Case((64, 9, 70), 9, heads=8, kv_heads=1, shares=2),
    Case((40, 12), 2, dim=24, page=8, norm=True),
    Case((70, 300), 4, heads=4, kv_heads=4, dim=64, dtype="float16", shares=8, norm=True),
    Case((130, 16, 67), 16, heads=7, kv_heads=1, shares=4),
    Case((65, 90, 3, 130), widths=(1, 5, 3, 0), shares=2),
    Case((200, 30, 65), 1, window=40, shares=4),
    Case((150, 300, 5), 5, window=8, sinks=2, heads=6, kv_heads=3, shares=4),
    Case((100, 40, 9), 9, window=3, shares=2, page=8),
    Case((301, 1), 1, window=1, heads=4, kv_heads=1),
    Case((400, 150, 70), 4, window=100, sinks=70, shares=8, page=8, norm=True),
    Case((260, 129), 3, window=65, sinks=1, dim=64, dtype="float16", shares=4),
)
"""Rows with few new tokens."""

MANY = (
    Case((20,), 20),
    Case((70, 50), 17, heads=8, kv_heads=2, dim=32),
    Case((50,), 17, heads=2, kv_heads=1, dtype="float16", norm=True),
    Case((40, 90, 66), widths=(40, 1, 17), dim=24, page=8, norm=True),
    Case((50, 300, 130), 50, window=40),
    Case((60, 250), 60, window=30, sinks=4, heads=8, kv_heads=2, page=8, norm=True),
    Case((280, 90, 33), widths=(200, 1, 20), window=1),
    Case((330, 100, 40), widths=(20, 100, 3), window=150, sinks=90, heads=2, kv_heads=1),
    Case((200,), 90, window=64, sinks=16, dtype="float16", norm=True),
)

MLA = Case((130, 17), 4, heads=16, kv_heads=1, dim=80, value_dim=64, in_keys=True, pairs=0, shares=4)
ROTATED_MLA = replace(MLA, pairs=8, first=64, apart=True)
OLMO = Case((70, 40), 3, heads=6, kv_heads=3, dim=24, joint=True, apart=True, shares=2)
GATED = Case((150, 33), 2, heads=6, kv_heads=3, dim=24, pairs=3, norm=True, gated=True, apart=True, shares=4)
ALL = Case(
    (50, 90), 2, heads=6, kv_heads=2, dim=40, value_dim=16, in_keys=True, pairs=6, first=12, joint=True, gated=True,
    apart=True, logits=True, page=8, window=30, sinks=3,
)  # fmt: skip
MIXED = Case(
    (70, 133), 2, heads=6, dim=40, value_dim=16, in_keys=True, pairs=12, norm=True, logits=True, page=8, shares=2
)  # fmt: skip

OTHER_FEW = (
    MLA,
    MIXED,
    replace(MLA, lengths=(90, 40), width=3, heads=40, window=30, softcap=2.0, dtype="float16"),
    Case((150, 7, 33), 4, softcap=1.5, shares=4),
    Case((200, 30, 65), 2, heads=6, kv_heads=3, logits=True, shares=4),
    Case((150, 300, 5), 5, window=8, sinks=2, heads=6, kv_heads=3, softcap=3.0, logits=True, shares=4),
    Case((64, 9, 70), 3, dim=24, value_dim=16, pairs=0, shares=2),
    Case((40, 90), 2, dim=16, value_dim=24, pairs=3, norm=True, shares=2),
    Case((70, 45), 2, dim=80, pairs=10, shares=2),
    Case((70,), 3, dim=96, dtype="bfloat16", norm=True, logits=True, shares=2),
    Case((40, 50), 1, heads=2, kv_heads=1, dim=256, softcap=20.0, shares=2),
    ROTATED_MLA,
    OLMO,
    replace(OLMO, kv_heads=1, dim=64, dtype="bfloat16"),
    GATED,
    replace(GATED, dtype="float16", shares=1),
    ALL,
)
"""Rows with few new tokens and attention of other kinds: soft caps, sink logits, values of another size or inside keys,
heads that are not rotated or in part, norms over all heads, gates, and tokens that lie apart."""

OTHER_MANY = (
    replace(MLA, lengths=(60, 90, 46), width=0, widths=(40, 1, 17)),
    replace(MIXED, lengths=(50,), width=20, softcap=2.0),
    Case((60, 90), 40, window=30, sinks=4, softcap=1.5, logits=True, norm=True),
    Case((50, 70), widths=(40, 17), dim=24, value_dim=16, pairs=0, logits=True),
    Case((40,), 18, dim=96, pairs=24, dtype="float16", logits=True),
    replace(ROTATED_MLA, lengths=(50,), width=0, widths=(40,)),
    replace(OLMO, width=19),
    replace(OLMO, width=0, widths=(40, 2), kv_heads=1, dim=64, dtype="bfloat16"),
    replace(GATED, width=20),
    replace(ALL, width=17),
)


class Inputs:
    """Random q, k and v of a case, in shuffled pages. The cache holds the tokens before the new ones. Memory that
    nothing wrote is NaN."""

    def __init__(self, case: Case, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(3)
        self.case, self.device = case, device
        batch, self.dtype = len(case.lengths), getattr(torch, case.dtype)
        total = max(case.lengths)
        self.qkv = torch.randn(batch, total, sum(self._widths()), generator=generator).to(device, self.dtype)
        columns = -(-total // case.page) + 1
        pages = torch.randperm(batch * columns, generator=generator) + 1
        self.page_table = pages.view(batch, columns).int().to(device)
        self.left = [self._give_back(row) for row in range(batch)]
        norms = None
        if case.norm or case.joint:
            counts = (case.heads, case.kv_heads) if case.joint else (1, 1)
            dtype = torch.float32 if case.joint else self.dtype
            q, k = (torch.rand(count * case.dim, generator=generator).add(0.5) for count in counts)
            norms = q.to(device, dtype), k.to(device, dtype)
        # The table is shorter than the texts. Later positions use its last row.
        pairs = case.dim // 2 if case.pairs is None else case.pairs
        rotary = Rope(theta=100.0).table(2 * pairs, max(1, total - 2)).to(device) if pairs else None
        logits = torch.randn(case.heads, generator=generator).to(device) if case.logits else None
        scale = 1.5 * case.dim**-0.5 if case.softcap else case.dim**-0.5
        self.heads = Heads(case.heads, rotary, scale, norms, EPS, case.softcap, logits, case.first)
        gates = torch.randn(batch, total, case.heads * (case.value_dim or case.dim), generator=generator)
        self.gates = gates.to(device, self.dtype) if case.gated else None
        self.texts = [self._heads_of(row, length) for row, length in enumerate(case.lengths)]
        shape = (1 + batch * columns, case.page, case.memory.width)
        self.cache = torch.full(shape, float("nan"), dtype=self.dtype, device=device)
        self.layer = case.memory.of(self.cache)
        for row, (length, count) in enumerate(zip(case.lengths, case.counts, strict=True)):
            self.write(self.cache, row, 0, length - count)
        if case.cached:
            self.cache = narrowed(case.memory, self.cache, CACHED[case.cached])
            self.layer = case.memory.of(self.cache)

    def _widths(self) -> tuple[int, int, int]:
        """Return the numbers of elements of a token's queries, keys and values."""
        case = self.case
        keys = case.kv_heads * case.dim
        return case.heads * case.dim, keys, case.memory.width - keys

    def _heads_of(self, row: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of a row's text after norm and RoPE, in float32."""
        case = self.case
        q, k, v = self.qkv[row, :length].float().split(self._widths(), 1)
        q, k = q.unflatten(1, (-1, case.dim)), k.unflatten(1, (-1, case.dim))
        if self.heads.norms is not None:
            over = (-2, -1) if case.joint else (-1,)
            q, k = (
                x * (x.square().mean(over, keepdim=True) + EPS).rsqrt() * w.float().view(-1, case.dim)
                for x, w in zip((q, k), self.heads.norms, strict=True)
            )
        if self.heads.rotary is not None:
            at = torch.arange(length, device=self.device).clamp(max=self.heads.rotary.shape[0] - 1)
            cos, sin = self.heads.rotary[at, None].unbind(-1)
            first, last = case.first, case.first + 2 * cos.shape[-1]

            def turn(x: Tensor) -> Tensor:
                a, b = x[..., first:last:2], x[..., first + 1 : last : 2]
                turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
                return torch.cat((x[..., :first], turned, x[..., last:]), -1)

            q, k = turn(q), turn(k)
        size = case.value_dim or case.dim
        return q, k, k[..., :size] if case.in_keys else v.unflatten(1, (-1, size))

    def _give_back(self, row: int) -> range:
        """Find the pages that none of a row's new tokens attends to. Every other one of them is removed from the
        page table. Returns their columns."""
        case = self.case
        low = case.lengths[row] - case.counts[row] + 1 - case.memory.window.reach
        left = range(-(-case.sinks // case.page), max(low, 0) // case.page if case.window else 0)
        self.page_table[row, left.start : max(left.stop, left.start) : 2] = 0
        return left

    def write(self, cache: Tensor, row: int, start: int, stop: int) -> None:
        """Write keys and values of some tokens of a row to its pages."""
        if start == stop:
            return
        _, k, v = self.texts[row]
        kept = [n for n in range(start, stop) if n // self.case.page not in self.left[row]]
        at = torch.tensor(kept, dtype=torch.int64, device=self.device)
        pages = self.page_table[row, at // self.case.page].long()
        layer = self.case.memory.of(cache)
        layer.keys[pages, at % self.case.page] = k[at].to(self.dtype)
        if not self.case.in_keys:
            layer.values[pages, at % self.case.page] = v[at].to(self.dtype)

    def new_tokens(self) -> Tensor:
        """Return the queries, keys and values of all rows' new tokens."""
        return self._new(self.qkv)

    def new_gates(self) -> Tensor | None:
        """Return the gates of all rows' new tokens."""
        return None if self.gates is None else self._new(self.gates)

    def _new(self, of_texts: Tensor) -> Tensor:
        """Return the elements of all rows' new tokens."""
        pairs = zip(self.case.lengths, self.case.counts, strict=True)
        new = torch.cat([of_texts[r, n - c : n] for r, (n, c) in enumerate(pairs)])
        return lie_apart(new) if self.case.apart else new

    def rows(self) -> Rows:
        """The positions and pages of the new tokens."""
        case, counts = self.case, self.case.counts
        first = torch.tensor([n - c for n, c in zip(case.lengths, counts, strict=True)], device=self.device)
        starts = None
        if case.widths:
            starts = torch.tensor([0, *counts], device=self.device).cumsum(0)
        return Rows(self.page_table, first, max(counts), starts=starts)

    def run(self, attend: Attend) -> Tensor:
        """Return the attention of the new tokens [N, H * Dv]. It also writes their keys and values to `cache`."""
        return attend(self.new_tokens(), self.layer, self.rows(), self.heads, self.new_gates())

    def textbook(self) -> Tensor:
        """Compute the same attention in float32 from unpaged keys, in the simplest way."""
        case, rows = self.case, []
        group = case.heads // case.kv_heads
        for (q, k, v), length, count in zip(self.texts, case.lengths, case.counts, strict=True):
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.einsum("thd,nhd->htn", q, k) * self.heads.scale
            if case.softcap:
                scores = case.softcap * (scores / case.softcap).tanh()
            at = torch.arange(length, device=self.device)
            hidden = at[None, :] > at[:, None]
            if case.window:
                recent = at[:, None] - at[None, :] < case.window - case.sinks
                hidden |= ~(recent | (at[None, :] < case.sinks))
            scores = scores.masked_fill(hidden, float("-inf"))
            if self.heads.sink_logits is not None:
                sinks = self.heads.sink_logits[:, None, None].expand(-1, length, 1)
                weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            rows.append(torch.einsum("htn,nhd->thd", weights, v)[length - count :])
        result, gates = torch.cat(rows).flatten(1), self.new_gates()
        return result if gates is None else result * gates.float().sigmoid()

    def full_cache(self) -> Tensor:
        """Return a cache with the keys and values of all texts, and NaN everywhere else."""
        cache = torch.full_like(self.cache, float("nan"))
        for row, length in enumerate(self.case.lengths):
            self.write(cache, row, 0, length)
        return cache


def lie_apart(rows: Tensor) -> Tensor:
    """Return the same rows with other distances in memory. NaN is between them."""
    wide = torch.nn.functional.pad(rows, (3, 5), value=float("nan"))
    return wide[:, 3 : 3 + rows.shape[1]]


def error(case: Case, attend: Attend, device: str = "cpu") -> float:
    """Return the largest error of the attention and of the cache; infinite if other memory was written."""
    inputs = Inputs(case, device)
    out = inputs.run(attend)
    wanted, cache = inputs.textbook(), inputs.full_cache()
    if not torch.equal(cache.isnan(), inputs.cache.isnan()):
        return float("inf")
    written = (inputs.cache.float() - cache.float()).nan_to_num().abs().max()
    return max(float((out.float() - wanted).abs().max()), float(written))


def beyond(attend: Attend, width: int, device: str = "cpu", window: Window = NO_WINDOW) -> float:
    """Return the largest change of the cached keys by two rows: one whose positions exceed its page table, and one
    without pages. Infinite if the first one's output is NaN."""
    inputs = Inputs(replace(FEW[0], lengths=(32, 32), width=2, shares=2), device)
    inputs.run(attend)
    inputs.cache[0] = 0
    before = inputs.cache.clone()
    table = torch.stack((inputs.page_table[0], torch.zeros_like(inputs.page_table[0])))[:, :1].contiguous()
    rows = Rows(table, torch.tensor([900, 0], device=device), width)
    layer = inputs.layer._replace(window=window)
    out = attend(inputs.new_tokens()[:1].repeat(2 * width, 1), layer, rows, inputs.heads, None)
    changed = (before - inputs.cache)[1:].nan_to_num().abs().max()
    return float("inf") if out[:width].isnan().any() else float(changed)
