"""What a model is to the engine, and the paged KV it reads and writes.

Suffixes: B rows, T new tokens per row, P pages per row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from weft.models.config import ModelConfig


class KVShape(NamedTuple):
    """How much a `PagedKV` holds."""

    num_layers: int
    num_pages: int
    page_size: int
    num_kv_heads: int
    head_dim: int


class PagedKV:
    """Keys and values of every layer, in pages. Page 0 belongs to no request: padding writes there.

    `layers[i]` is layer i's cache [num_pages, page_size, 2, num_kv_heads, head_dim]; `k` and `v` view the
    same memory as [num_layers, num_pages, page_size, num_kv_heads, head_dim].
    """

    def __init__(self, shape: KVShape, dtype: torch.dtype, device: torch.device | str) -> None:
        self.num_pages = shape.num_pages
        self.page_size = shape.page_size
        num_layers, *page, num_kv_heads, head_dim = shape
        data = torch.zeros((num_layers, *page, 2, num_kv_heads, head_dim), dtype=dtype, device=device)
        self.layers = data.unbind(0)
        self.k, self.v = data.unbind(3)

    def copy_pages(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages of every layer: numbers int64 [n] each, no target a source. A device function."""
        for layer in self.layers:
            layer.index_copy_(0, targets, layer.index_select(0, sources))

    @classmethod
    def for_model(cls, model: Model, num_pages: int, page_size: int) -> PagedKV:
        """Room for all layers of `model`, where it is and in its dtype."""
        config = model.config
        shape = KVShape(config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        return cls(shape, config.dtype, model.device)


@dataclass(frozen=True)
class KVIndex:
    """Which KV one forward reads and writes, on the device.

    `page_table` [B, P] int32: the pages of each row in order. `positions` [B, T] int64, ascending by one
    within a row: the position of each new token, where its key and value are written; it attends to positions
    0 up to its own. Positions beyond the table go to page 0.
    """

    page_table: Tensor
    positions: Tensor

    @classmethod
    def at(cls, page_table: Tensor, positions: Tensor) -> KVIndex:
        """Checks shapes and dtypes (no values), so that a slip shows here and not in a kernel."""
        if page_table.dtype != torch.int32 or positions.dtype != torch.int64:
            raise TypeError(
                f"page_table is int32 and positions int64, not {page_table.dtype} and {positions.dtype}"
            )
        if page_table.dim() != 2 or positions.dim() != 2 or page_table.shape[0] != positions.shape[0]:
            raise ValueError(
                f"page_table is [B, P] and positions [B, T], "
                f"not {list(page_table.shape)} and {list(positions.shape)}"
            )
        return cls(page_table, positions)


@dataclass(frozen=True)
class Hidden:
    """What a forward gives. `last` [B, T, H], after the final norm: `Model.logits` takes it. `aux` [B, T,
    len(aux_layers) * H]: the hidden states entering those layers, in their order (width 0 for none); it may share
    memory with `last`.
    """

    last: Tensor
    aux: Tensor


class WeightSource(Protocol):
    """Where a model takes its weights from: each by name and shape, in the model's dtype, on its device."""

    def take(self, name: str, *shape: int) -> Tensor: ...


class Model(Protocol):
    """A decoder over paged KV. `embed`, `forward` and `logits` are device functions; the latter two may mark tensors
    to be given out by name (`models/outputs.py`)."""

    config: ModelConfig
    device: torch.device

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None: ...

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        """The config of a config.json's contents; `where` names the file in errors (`ModelError`)."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., H] of `tokens` [...] int64, each in 0..V-1."""

    def forward(
        self, tokens: Tensor, kv: PagedKV, index: KVIndex, aux_layers: tuple[int, ...] = ()
    ) -> Hidden:
        """Read `tokens` [B, T] int64, each in 0..V-1, writing their KV.

        `aux_layers`: layer numbers, whose incoming hidden states to return. The number of layers means the
        last one's output, before the final norm; one more means `Hidden.last`, after it.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] (a `Hidden.last`) -> [..., V] in the model's dtype."""
