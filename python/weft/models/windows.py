"""The attention windows of an engine's layers: the model's own, and those that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from weft.errors import InputError
from weft.models.config import ModelConfig
from weft.ops.attention import NO_WINDOW, Window


def layer_windows(
    config: ModelConfig, asked: Sequence[int], sinks: int, max_seq_len: int
) -> tuple[Window, ...]:
    """The window of each layer: the smaller one of the model's own and the one that is `asked` for, which are repeated
    over the layers. One that no text of `max_seq_len` tokens fills is none. The first `sinks` tokens stay in every
    window; `InputError` for one that has no room besides.
    """
    own = config.windows or (0,) * config.num_layers
    sizes = [min(filter(None, pair), default=0) for pair in zip(own, cycle(asked or (0,)), strict=False)]
    narrow = [size for size in sizes if 0 < size < max_seq_len]
    if narrow and sinks >= min(narrow):
        raise InputError(
            f"sink_tokens is {sinks}; it must be below the smallest attention window, {min(narrow)}, which they are "
            "part of"
        )
    return tuple(Window(size, sinks) if 0 < size < max_seq_len else NO_WINDOW for size in sizes)
