"""The interface between a model and the engine, and the paged KV that a model reads and writes.

Suffixes: B rows, T new tokens per row, P pages per row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from weft.models.config import ModelConfig
from weft.ops.attention import NO_WINDOW, Rows, Window
from weft.runtime.host_memory import lazy_zeros


class KVShape(NamedTuple):
    """The sizes of a paged KV cache (`PagedKV`)."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int


class PagedKV:
    """Keys and values of all layers, in pages. Page 0 belongs to no request: it fills the page tables of padding rows,
    and attention does not write it.

    `data` is [num_layers, num_pages, page_size, 2, num_kv_heads, head_dim]. `layers[i]` is the cache of layer i,
    [num_pages, page_size, 2, num_kv_heads, head_dim]. `k` and `v` are views [num_layers, num_pages, page_size,
    num_kv_heads, head_dim] of the same memory. `windows[i]` is the attention window of layer i (default: no window).
    """

    def __init__(
        self,
        shape: KVShape,
        dtype: torch.dtype,
        device: torch.device | str,
        windows: Sequence[Window] | None = None,
    ) -> None:
        self.windows = (NO_WINDOW,) * shape.num_layers if windows is None else tuple(windows)
        assert len(self.windows) == shape.num_layers
        self.page_size = shape.page_size
        num_layers, *page, num_kv_heads, head_dim = shape
        self._hold(_zeros((num_layers, *page, 2, num_kv_heads, head_dim), dtype, torch.device(device)))

    def resize(self, num_pages: int) -> None:
        """Allocate `num_pages` pages, all zeros. On the CPU they take memory only when they are written. Call it before
        any work that uses the cache is captured or launched."""
        shape = (self.data.shape[0], num_pages, *self.data.shape[2:])
        dtype, device = self.data.dtype, self.data.device
        # The old memory is freed first, because both may not fit together.
        del self.data, self.layers, self.k, self.v
        self._hold(_zeros(shape, dtype, device))

    def _hold(self, data: Tensor) -> None:
        self.data, self.num_pages = data, data.shape[1]
        self.layers = data.unbind(0)
        self.k, self.v = data.unbind(3)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers."""
        return self.data[:, 0].numel() * self.data.element_size()

    def page(self, number: int) -> Tensor:
        """A view of page `number` of all layers: [num_layers, page_size, 2, num_kv_heads, head_dim]."""
        return self.data[:, number]

    def copy_pages(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages in all layers, from `sources` to `targets`: page numbers, int64 [n] each. No page may be in
        both. A device function."""
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    @classmethod
    def for_model(
        cls, model: Model, num_pages: int, page_size: int, windows: Sequence[Window] | None = None
    ) -> PagedKV:
        """Allocate KV for all layers of `model`, on its device and in its dtype. `windows` defaults to the model's."""
        config = model.config
        if windows is None and config.windows:
            windows = [Window(size) for size in config.windows]
        shape = KVShape(config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        return cls(shape, config.dtype, model.device, windows)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return lazy_zeros(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Hidden:
    """The result of a forward.

    `last` [B, T, H] is the last layer's output before the final norm, the input of `Model.logits`. `aux` [B, T,
    len(aux_layers) * H] holds the hidden states that `aux_layers` of `Model.forward` names, in that order. Without such
    layers its width is 0. For packed tokens [N], both have N in place of B, T.
    """

    last: Tensor
    aux: Tensor


class WeightSource(Protocol):
    """Provides a model's weights by name and shape, on the model's device. `take_matrix` returns projections and
    embeddings, whose dtype may be narrower than the model's. `take` returns all other tensors, in the model's dtype."""

    def take(self, name: str, *shape: int) -> Tensor: ...
    def take_matrix(self, name: str, *shape: int) -> Tensor: ...


class Model(Protocol):
    """A decoder over paged KV. `forward` and `logits` are device functions; they may mark tensors as named outputs
    (`models/outputs.py`)."""

    config: ModelConfig
    device: torch.device

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None: ...

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        """Parse the contents of a config.json. `where` names the file in errors (`ModelError`)."""

    embedding: Tensor
    """The embedding matrix [V, H]; see `weft.ops.rows.embed`."""

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        """Run the decoder on the tokens of `rows` and write their KV. `tokens` is int64 [B, T], or [N] for rows of
        different lengths. Ids outside of the vocabulary are clamped to it. Layer i attends within `kv.windows[i]`.
        Tokens after the first `rows.live` are padding: their results are undefined.

        `aux_layers` are numbers of layers whose input hidden states are returned, in `aux_out` if given. The number
        num_layers means the last layer's output before the final norm (`Hidden.last`), num_layers + 1 after the norm.
        """

    def logits(
        self,
        hidden: Tensor,
        out: Tensor | None = None,
        is_normed: bool = False,
        live: Tensor | None = None,
    ) -> Tensor:
        """Logits [..., V] in the model's dtype for `hidden` [..., H]: a `Hidden.last`, or with `is_normed` hidden
        states after the final norm. The result is a new tensor or `out`. The last dimension of `out` must be
        contiguous, and flattening the others must not need a copy. `live`, an int64 [1] on the device, is the number of
        rows to compute; the others may be left alone."""
