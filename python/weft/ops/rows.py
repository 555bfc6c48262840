"""Operations on rows of activations: embeddings, joined norms, and gathering and copying rows.

`live` (int64 [1], on the device) is the number of live rows. The kernels neither read nor write the others. None means
all rows. `vocab` is the number of embeddings, of which a packed weight may have more."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.ops.attention import Rows
from weft.ops.device_blocks import Stored, stored_at
from weft.ops.formats import Activations, Format
from weft.ops.huge_pages import settled
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.linear import Linear, Norm
from weft.ops.packing import format_of, parts_of
from weft.ops.quantized import Matrix, Quantized


class Layout(IntEnum):
    """How embeddings are stored: as rows, of blocks if they are quantised; or as a `Linear` has them, in panels, in
    tiles, or on CUDA in `weft.ops.device_blocks`, which stands for panels there."""

    ROWS = 0
    PANELS = 1
    TILES = 2


class Embeddings(NamedTuple):
    """A matrix of embeddings, as the operations take it."""

    memory: Tensor
    format: Format
    layout: Layout
    vocab_size: int
    width: int


def embed(
    weight: Matrix | Linear,
    tokens: Tensor,
    dtype: torch.dtype,
    live: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Look up the embeddings [N, H] of `tokens` [N] int64 in `weight` [V, H], or in a `Linear` with this weight.
    `dtype` is the dtype of the result: the weight's, but on the CPU float32. `scale` is a factor of the result. Ids
    outside of the vocabulary are clamped to it."""
    stored = _embeddings(weight)
    out = torch.empty(tokens.shape[0], stored.width, dtype=dtype, device=stored.memory.device)
    _EMBED(stored.memory, tokens, out, stored.format, stored.layout, stored.vocab_size, live, scale)
    return out


def embeddable(weight: Matrix, is_copied: bool = False) -> Matrix | Linear:
    """Embeddings [V, H] as `embed` reads them on their device: on CUDA, quantised ones as a `Linear`. With `is_copied`
    they are no view of `weight` on a CPU, which may be a view of a file."""
    if not weight.is_cpu:
        return Linear(weight) if isinstance(weight, Quantized) else weight
    if not is_copied:
        return weight
    if isinstance(weight, Quantized):
        return Quantized(settled(weight.data), weight.format, weight.num_inputs, weight.order)
    return settled(weight)


def _embeddings(weight: Matrix | Linear) -> Embeddings:
    if isinstance(weight, Quantized):
        require(weight.dim() == 2, f"embeddings are [V, H], not {list(weight.shape)}")
        require(weight.order is None, f"the inputs of embeddings are in order, not as those of {weight!r}")
        memory = weight.data if weight.data.is_contiguous() else weight.data.contiguous()
        return Embeddings(memory, weight.format, Layout.ROWS, *weight.shape)
    if isinstance(weight, Tensor):
        return Embeddings(weight, format_of(weight), Layout.ROWS, *weight.shape)
    sizes = weight.num_outputs, weight.num_inputs
    memory, parts = weight.packed.memory, parts_of(weight.packed.parts)
    if not parts:  # on CUDA
        return Embeddings(memory, format_of(memory), Layout.ROWS, *sizes)
    require(not weight.epilogue.gated, "a Linear with gates has no embeddings")
    require(len(parts) == 1, "a Linear of several formats has no embeddings")
    part = parts[0]
    require(part.order < 0, "a Linear whose inputs are in an order of their own has no embeddings")
    is_tiled = part.format is Format.BF16 and part.activations is not Activations.FLOAT32
    return Embeddings(memory, part.format, Layout.TILES if is_tiled else Layout.PANELS, *sizes)


def join_norms(
    weight: Matrix | Linear,
    tokens: Tensor,
    embed_norm: Norm,
    hidden: Tensor,
    hidden_norm: Norm,
    live: Tensor | None = None,
) -> Tensor:
    """Concatenate the normed embeddings of `tokens` (see `embed`) and the normed `hidden` [N, H] to rows [N, 2 H]."""
    stored = _embeddings(weight)
    out = hidden.new_empty(hidden.shape[0], 2 * hidden.shape[1])
    _JOIN(
        stored.memory, tokens, embed_norm.weight, embed_norm.eps, hidden, hidden_norm.weight, hidden_norm.eps, out,
        stored.format, stored.layout, stored.vocab_size, live,
    )  # fmt: skip
    return out


def take_rows(x: Tensor, index: Tensor, out: Tensor, live: Tensor | None = None) -> Tensor:
    """Write out[b] = x[b, index[b]]. `x` [B, T, H] and `out` [B, H] are contiguous; `index` is int64 [B], in 0..T-1."""
    _TAKE(x, index, out, live)
    return out


def copy_rows_(out: Tensor, x: Tensor, live: Tensor | None = None) -> None:
    """Copy `x` to `out`, both [N, H] of one dtype, with any row stride. On CUDA, torch copies all rows."""
    # On the CPU the calling thread copies, because torch's copy would wake its thread pool.
    _COPY(out, x, live)


def packed_places(starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The row of each of `count` packed entries, and the entry's offset in that row. Row r has the entries `starts[r]`
    to `starts[r + 1] - 1`. Entries after the last row are padding; they continue that row."""
    # An entry's row is the number of rows that end at or before it. On a CPU `torch.searchsorted` is slower: it would
    # wake torch's thread pool.
    ends = torch.zeros(count + 1, dtype=torch.int64, device=starts.device)
    ends.index_add_(0, starts[1:], torch.ones_like(starts[1:]))
    row = ends[:count].cumsum(0).clamp_(max=starts.shape[0] - 2)
    return row, torch.arange(count, device=starts.device) - starts.index_select(0, row)


def positions_of(rows: Rows, count: int) -> Tensor:
    """The positions of the `count` packed tokens of `rows`: int64 [count]. Those of padding are arbitrary, but not
    negative."""
    parts = [rows.base] if rows.count is None else [rows.base, rows.count]
    if rows.starts is None:
        column = torch.arange(rows.offset, rows.offset + rows.width, device=rows.base.device)
        return _sum([*(part[:, None] for part in parts), column]).view(-1)
    row, offset = packed_places(rows.starts, count)
    places = _sum([*(part.index_select(0, row) for part in parts), offset])
    return places + rows.offset if rows.offset else places


def _sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of integer tensors, broadcast. A captured `sum` runs natively, and `+` of integers would not."""
    return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


def _embed_cpu(
    weight: Tensor,
    tokens: Tensor,
    out: Tensor,
    format: int,
    layout: int,
    vocab: int,
    live: Tensor | None = None,
    scale: float = 1.0,
) -> None:
    tokens = tokens.contiguous()
    kernel = _core.embed_cpu(
        weight.data_ptr(), format, layout, tokens.data_ptr(), out.data_ptr(), tokens.shape[0], vocab, out.shape[1],
        scale, address(live),
    )  # fmt: skip
    run_kernel("embed", kernel)


def _embed_cuda(
    weight: Tensor,
    tokens: Tensor,
    out: Tensor,
    format: int,
    layout: int,
    vocab: int,
    live: Tensor | None = None,
    scale: float = 1.0,
) -> None:
    stored = _stored_on_device(weight, format, layout, vocab, out.shape[1])
    with device_of(out):
        triton_kernels("rows_triton").embed(stored, tokens, out, live=live, scale=scale)


def _stored_on_device(weight: Tensor, format: int, layout: int, vocab: int, width: int) -> Stored:
    kind = Format(format)
    if not kind.is_quantized:
        return weight
    require(
        layout != Layout.ROWS,
        f"on CUDA embeddings in {kind.name} must be a Linear's; give Linear(weight) instead of the weight",
    )
    return stored_at(weight, 0, kind, 1, vocab, width)


def _join_cpu(
    weight: Tensor,
    tokens: Tensor,
    embed_norm: Tensor,
    embed_eps: float,
    hidden: Tensor,
    hidden_norm: Tensor,
    hidden_eps: float,
    out: Tensor,
    format: int,
    layout: int,
    vocab: int,
    live: Tensor | None = None,
) -> None:
    require(hidden.dtype is torch.float32 and hidden.stride(1) == 1, "hidden must be float32 rows")
    tokens = tokens.contiguous()
    kernel = _core.join_norms_cpu(
        weight.data_ptr(), format, layout, tokens.data_ptr(), hidden.data_ptr(), embed_norm.data_ptr(),
        hidden_norm.data_ptr(), out.data_ptr(), tokens.shape[0], vocab, hidden.shape[1], hidden.stride(0), embed_eps,
        hidden_eps, address(live),
    )  # fmt: skip
    run_kernel("join_norms", kernel)


def _join_cuda(
    weight: Tensor,
    tokens: Tensor,
    embed_norm: Tensor,
    embed_eps: float,
    hidden: Tensor,
    hidden_norm: Tensor,
    hidden_eps: float,
    out: Tensor,
    format: int,
    layout: int,
    vocab: int,
    live: Tensor | None = None,
) -> None:
    stored = _stored_on_device(weight, format, layout, vocab, hidden.shape[1])
    with device_of(weight):
        triton_kernels("rows_triton").join_norms(
            stored,
            tokens,
            embed_norm,
            embed_eps,
            hidden,
            hidden_norm,
            hidden_eps,
            out,
            live=live,
        )


def _take_cpu(x: Tensor, index: Tensor, out: Tensor, live: Tensor | None = None) -> None:
    is_plain = x.dtype is torch.float32 and x.is_contiguous() and out.is_contiguous()
    require(is_plain, f"x and out must be float32, contiguous; got {x.dtype} {x.stride()}")
    kernel = _core.take_rows_cpu(
        x.data_ptr(), index.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], x.shape[2], address(live)
    )
    run_kernel("take_rows", kernel)


def _take_cuda(x: Tensor, index: Tensor, out: Tensor, live: Tensor | None = None) -> None:
    with device_of(x):
        triton_kernels("rows_triton").take_rows(x, index, out, live=live)


def _copy_cpu(out: Tensor, x: Tensor, live: Tensor | None = None) -> None:
    require(
        out.dtype is x.dtype and out.shape == x.shape, f"out {out.dtype} {list(out.shape)} must be as x is"
    )
    require(live is None or x.dim() == 2, f"with live rows x is [N, H], not {list(x.shape)}")
    size = x.element_size()
    to, source = ([stride * size for stride in tensor.stride()] for tensor in (out, x))
    kernel = _core.strided_copy_cpu(
        out.data_ptr(), x.data_ptr(), list(x.shape), to, source, size, address(live)
    )
    run_kernel("copy", kernel)


def _copy_cuda(out: Tensor, x: Tensor, live: Tensor | None = None) -> None:
    out.copy_(x)


_EMBED = register(
    "embed(Tensor weight, Tensor tokens, Tensor(a!) out, int format, int layout, int vocab, Tensor? live=None,"
    " float scale=1.0) -> ()",
    cpu=_embed_cpu,
    cuda=_embed_cuda,
)
_JOIN = register(
    "join_norms(Tensor weight, Tensor tokens, Tensor embed_norm, float embed_eps, Tensor hidden, Tensor hidden_norm,"
    " float hidden_eps, Tensor(a!) out, int format, int layout, int vocab, Tensor? live=None) -> ()",
    cpu=_join_cpu,
    cuda=_join_cuda,
)
_COPY = register(
    "copy_rows_(Tensor(a!) out, Tensor x, Tensor? live=None) -> ()", cpu=_copy_cpu, cuda=_copy_cuda
)
_TAKE = register(
    "take_rows(Tensor x, Tensor index, Tensor(a!) out, Tensor? live=None) -> ()",
    cpu=_take_cpu,
    cuda=_take_cuda,
)
