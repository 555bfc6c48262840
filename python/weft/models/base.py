"""What a model is to the engine, and the paged KV it reads and writes.

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


class KVShape(NamedTuple):
    """How much a `PagedKV` holds."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int


class PagedKV:
    """Keys and values of every layer, in pages. Page 0 belongs to no request: padding writes there.

    `data` is all of it, [num_layers, num_pages, page_size, 2, num_kv_heads, head_dim]. `layers[i]` is layer i's cache
    [num_pages, page_size, 2, num_kv_heads, head_dim]; `k` and `v` view the same memory as [num_layers, num_pages,
    page_size, num_kv_heads, head_dim]. `windows[i]` says which of it the queries of layer i see (default: all).
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
        self._hold(torch.zeros((num_layers, *page, 2, num_kv_heads, head_dim), dtype=dtype, device=device))

    def resize(self, num_pages: int) -> None:
        """Have so many pages, all zeros. Before anything is captured or launched that uses it."""
        shape = (self.data.shape[0], num_pages, *self.data.shape[2:])
        dtype, device = self.data.dtype, self.data.device
        del self.data, self.layers, self.k, self.v
        self._hold(torch.zeros(shape, dtype=dtype, device=device))

    def _hold(self, data: Tensor) -> None:
        self.data, self.num_pages = data, data.shape[1]
        self.layers = data.unbind(0)
        self.k, self.v = data.unbind(3)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, of all layers."""
        return self.data[:, 0].numel() * self.data.element_size()

    def page(self, number: int) -> Tensor:
        """Page `number` of every layer: [num_layers, page_size, 2, num_kv_heads, head_dim], a view."""
        return self.data[:, number]

    def copy_pages(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages of every layer: numbers int64 [n] each, no target a source. A device function."""
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    @classmethod
    def for_model(
        cls, model: Model, num_pages: int, page_size: int, windows: Sequence[Window] | None = None
    ) -> PagedKV:
        """Room for all layers of `model`, where it is and in its dtype; by default with its own `windows`."""
        config = model.config
        if windows is None and config.windows:
            windows = [Window(size) for size in config.windows]
        shape = KVShape(config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        return cls(shape, config.dtype, model.device, windows)


@dataclass(frozen=True)
class Hidden:
    """What a forward gives. `last` [B, T, H], before the final norm: `Model.logits` takes it. `aux` [B, T,
    len(aux_layers) * H]: the hidden states entering those layers, in their order (width 0 for none).
    """

    last: Tensor
    aux: Tensor


class WeightSource(Protocol):
    """Where a model takes its weights from, by name and shape, on its device: `take_matrix` what is multiplied with and
    embeddings, which may be of fewer bits than the model's dtype; `take` the others, in that dtype."""

    def take(self, name: str, *shape: int) -> Tensor: ...
    def take_matrix(self, name: str, *shape: int) -> Tensor: ...


class Model(Protocol):
    """A decoder over paged KV. `forward` and `logits` are device functions, which may mark tensors to be given out by
    name (`models/outputs.py`)."""

    config: ModelConfig
    device: torch.device

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None: ...

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        """The config of a config.json's contents; `where` names the file in errors (`ModelError`)."""

    embedding: Tensor
    """[V, H]; see `weft.ops.rows.embed`."""

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        """Read `tokens` [B, T] int64 of `rows`, or [N] of rows of different lengths, writing their KV. Ids that the
        vocabulary does not have are taken for its nearest. Layer i attends to what `kv.windows[i]` says.

        `aux_layers`: layer numbers, whose incoming hidden states to return, in `aux_out` if that is given. The number
        of layers means the last one's output, before the final norm (`Hidden.last`); one more means after it.
        """

    def logits(self, hidden: Tensor, out: Tensor | None = None, is_normed: bool = False) -> Tensor:
        """[..., H] (a `Hidden.last`, or with `is_normed` what has been under the final norm) -> [..., V] in the model's
        dtype, new or `out`, whose last dimension is contiguous and whose others can be flattened."""
