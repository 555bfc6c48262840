"""The memory of a model's layers: sizes that the engine allocates and counts, whatever a layer computes.

A layer keeps pages (keys and values of every position), a state (a fixed size for each sequence), both, or nothing.

A state is undone by a count. An iteration verifies a row's last token and K drafts. Its recurrences keep the state
after the last token (the base), and the inputs of the K drafts. The next iteration first applies the inputs of the
drafts that were accepted. So a refused draft costs nothing, and no state is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from weft.ops.attention import NO_WINDOW, KVLayer, Window
from weft.ops.cached import token_size


@dataclass(frozen=True)
class Pages:
    """The keys and values of a layer's positions: `num_heads` keys of `key_size`, then as many values of `value_size`.
    With `values_in_keys` (multi-head latent attention), values are not stored: they are the first `value_size` elements
    of the keys. `window` is the layer's attention window."""

    num_heads: int
    key_size: int
    value_size: int
    values_in_keys: bool = False
    window: Window = NO_WINDOW

    @property
    def width(self) -> int:
        """The number of numbers for each position."""
        return self.num_heads * (self.key_size + (0 if self.values_in_keys else self.value_size))

    def size_in(self, dtype: torch.dtype) -> int:
        """The number of elements of `dtype` for each position, scales included."""
        return token_size(self.width, self.num_heads * (1 if self.values_in_keys else 2), dtype)

    def of(self, memory: Tensor) -> KVLayer:
        """The keys and values in `memory` [pages, page_size, size_in(its dtype)]."""
        keys = memory[..., : self.num_heads * self.key_size].unflatten(-1, (self.num_heads, self.key_size))
        if self.values_in_keys:
            return KVLayer(keys, keys[..., : self.value_size], self.window, values_in_keys=True)
        values = memory[..., self.num_heads * self.key_size : self.width]
        return KVLayer(keys, values.unflatten(-1, (self.num_heads, self.value_size)), self.window)


@dataclass(frozen=True)
class Convolution:
    """A causal convolution over positions, one for each channel. An output depends on the last `taps` inputs."""

    channels: int
    taps: int


class Decay(IntEnum):
    """The shape of a recurrence's decay at a position."""

    HEAD = 0  # a factor for each head: gated delta rule, Mamba 2
    KEY = 1  # a factor for each head and key dimension: KDA
    ELEMENT = 2  # exp(step * rate): a step for each value dimension, constant rates for each element: Mamba 1


@dataclass(frozen=True)
class Recurrence:
    """A linear recurrence over positions. Each of `num_heads` heads has a state S [key_size, value_size], in float32:

        S = decay * S
        u = beta * (v - S^T k)   if `is_delta`, else v
        S = S + k u^T
        output = S^T q

    Queries and keys have `num_key_heads` heads, each of which serves `num_heads` / `num_key_heads` adjacent heads."""

    num_heads: int
    num_key_heads: int
    key_size: int
    value_size: int
    decay: Decay = Decay.HEAD
    is_delta: bool = False


@dataclass(frozen=True)
class State:
    """The state of a layer: its convolutions and its recurrences, each in the order of calls."""

    convolutions: tuple[Convolution, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()


@dataclass(frozen=True)
class LayerMemory:
    """The memory of a layer: pages, a state, both, or nothing."""

    pages: Pages | None = None
    state: State | None = None


def token_bytes(memories: Iterable[LayerMemory], dtype: torch.dtype) -> int:
    """Bytes of the keys and values of a position in all layers, in a cache of `dtype`."""
    return (
        sum(memory.pages.size_in(dtype) for memory in memories if memory.pages is not None) * dtype.itemsize
    )
