"""The interface between a model and the engine, and the paged KV that a model reads and writes.

Suffixes: B rows, T new tokens per row, P pages per row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from weft.models.config import ModelConfig
from weft.models.matrices import Matrices
from weft.models.memory import LayerMemory, Pages
from weft.models.states import States
from weft.ops.attention import KVLayer, Rows, Window
from weft.ops.cached import as_bytes
from weft.ops.linear import Linear
from weft.ops.quantized import Matrix
from weft.runtime.host_memory import lazy_zeros


class PagedKV:
    """Keys and values of all layers, in pages. Page 0 belongs to no request: it fills the page tables of padding rows,
    and attention does not write it.

    `layers[i]` is the memory of layer i; None for a layer without pages. Layers whose tokens have the same size, in
    elements of `dtype`, share a tensor [layers, num_pages, page_size, size] of `groups`. `states` are those of layers
    that keep a fixed size for each slot; None without such layers.

    With `num_windowed` pages, layers with windows have pages of their own, which are numbered apart. They share the
    tensors of `windowed_groups`, [layers, num_windowed, page_size, size].
    """

    def __init__(
        self,
        memories: Sequence[LayerMemory],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        num_windowed: int = 0,
    ) -> None:
        self.page_size, self.dtype = page_size, dtype
        self._device = torch.device(device)
        self._pages = [memory.pages for memory in memories]
        self.states: States | None = None
        self._allocate(num_pages, num_windowed)

    def resize(self, num_pages: int, num_windowed: int = 0) -> None:
        """Allocate other pages, all zeros. On the CPU they take memory only when they are written. Call it before
        any work that uses the cache is captured or launched."""
        del self.groups, self.windowed_groups, self.layers  # first, because both may not fit together
        self._allocate(num_pages, num_windowed)

    def _allocate(self, num_pages: int, num_windowed: int) -> None:
        self.num_pages, self.num_windowed = num_pages, num_windowed
        counts = Counter(
            (self._is_windowed(pages), pages.size_in(self.dtype))
            for pages in self._pages
            if pages is not None
        )
        groups = {
            (is_windowed, size): _zeros(
                (count, num_windowed if is_windowed else num_pages, self.page_size, size),
                self.dtype,
                self._device,
            )
            for (is_windowed, size), count in counts.items()
        }
        rest = {key: iter(group) for key, group in groups.items()}
        self.groups = [group for (is_windowed, _), group in groups.items() if not is_windowed]
        self.windowed_groups = [group for (is_windowed, _), group in groups.items() if is_windowed]
        self.layers: list[KVLayer | None] = []
        for pages in self._pages:
            if pages is None:
                self.layers.append(None)
                continue
            is_windowed = self._is_windowed(pages)
            layer = pages.of(next(rest[is_windowed, pages.size_in(self.dtype)]))
            self.layers.append(layer._replace(is_windowed=is_windowed))

    def _is_windowed(self, pages: Pages) -> bool:
        return self.num_windowed > 0 and pages.window.size > 0

    @property
    def windows(self) -> list[Window]:
        """The windows of the layers with pages."""
        return [pages.window for pages in self._pages if pages is not None]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers whose pages `num_pages` counts."""
        return self._bytes(
            pages for pages in self._pages if pages is not None and not self._is_windowed(pages)
        )

    @property
    def windowed_bytes(self) -> int:
        """Bytes of one page over all layers with windows."""
        return self._bytes(pages for pages in self._pages if pages is not None and pages.window.size)

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(group.nbytes for group in (*self.groups, *self.windowed_groups))

    def _bytes(self, layers: Iterable[Pages]) -> int:
        return sum(pages.size_in(self.dtype) for pages in layers) * self.page_size * self.dtype.itemsize

    def copy_pages(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole pages in all layers of `groups`, from `sources` to `targets`: page numbers, int64 [n] each. No
        page may be in both. A device function."""
        for group in map(as_bytes, self.groups):
            group.index_copy_(1, targets, group.index_select(1, sources))

    @classmethod
    def for_model(
        cls,
        model: Model,
        num_pages: int,
        page_size: int,
        windows: Sequence[Window] | None = None,
        num_slots: int = 0,
        num_windowed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> PagedKV:
        """Allocate KV for all layers of `model`, on its device and in `dtype` (default: that of activations).
        `windows` are the layers' windows in place of the model's. With `num_slots`, also allocate the states of that
        number of slots, without drafts and snapshots, if the model has any. `num_windowed` is that of the class."""
        memories = model.config.layer_memories
        if windows is not None:
            memories = tuple(
                replace(memory, pages=memory.pages and replace(memory.pages, window=window))
                for memory, window in zip(memories, windows, strict=True)
            )
        kv = cls(memories, num_pages, page_size, dtype or model.config.dtype, model.device, num_windowed)
        if num_slots and model.config.has_states:
            kv.states = States(memories, num_slots, 0, 0, False, model.device)
        return kv


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
    embeddings, which may be quantised, whose dtype may be narrower than the model's, and which may be views of a file's
    pages: `Linear` copies them. `take_dense` returns those that must be numbers. `take_in_order` returns embeddings and
    projections of experts, one tensor for each, and `take_matrices` projections that are one tensor for all experts:
    their matrices are read one by one, and their inputs are in order. `take` returns all other tensors, in the model's
    dtype, and `take_float` in float32, not rounded. `take_all` returns all tensors as they are stored, on the CPU.
    `drop_all` lets there be tensors that the model does not use: those whose names begin with `prefix`. `directory`
    names the source in errors.

    A model is built twice. The first time, its weights are on the device "meta" and have no contents, so that missing
    and wrong tensors are found before any is read."""

    directory: Path
    device: torch.device

    def take(self, name: str, *shape: int) -> Tensor: ...
    def take_float(self, name: str, *shape: int) -> Tensor: ...
    def take_matrix(self, name: str, *shape: int) -> Matrix: ...
    def take_dense(self, name: str, *shape: int) -> Tensor: ...
    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices: ...
    def take_matrices(self, name: str, *shape: int) -> Matrices: ...
    def take_all(self) -> dict[str, Tensor]: ...
    def drop_all(self, prefix: str) -> None: ...
    def __contains__(self, name: str) -> bool: ...


class Model(Protocol):
    """A decoder over paged KV. `forward` and `logits` are device functions; they may mark tensors as named outputs
    (`models/outputs.py`)."""

    config: ModelConfig
    device: torch.device

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None: ...

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        """Parse the contents of a config.json. `where` names the file in errors (`ModelError`)."""

    embedding: Matrix | Linear
    """The embedding matrix [V, H], or the output projection that shares it; see `weft.ops.rows.embed`."""

    def forward(
        self,
        tokens: Tensor,
        kv: PagedKV,
        rows: Rows,
        aux_layers: tuple[int, ...] = (),
        aux_out: Tensor | None = None,
    ) -> Hidden:
        """Run the decoder on the tokens of `rows` and write their KV. `tokens` is int64 [B, T], or [N] for rows of
        different lengths. Ids outside of the vocabulary are clamped to it. Layer i reads and writes `kv.layers[i]`.
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
