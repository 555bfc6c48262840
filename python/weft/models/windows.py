"""The attention windows of a model's layers, from the configs of the model and of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from weft.errors import InputError
from weft.models.config import ModelConfig
from weft.ops.attention import NO_WINDOW, Window


def layer_windows(
    config: ModelConfig, asked: Sequence[int], sinks: int, max_seq_len: int
) -> tuple[Window, ...]:
    """The window of each layer: the smaller of the model's window and the one in `asked`, which is repeated over the
    layers. 0 means no window. A layer without pages has none.

    A window of `max_seq_len` tokens or more counts as none. The first `sinks` tokens stay visible and count as part of
    each window; raises `InputError` for a window that is not larger than `sinks`.
    """
    pairs = zip(config.layer_memories, cycle(asked or (0,)), strict=False)
    sizes = [
        min(filter(None, (memory.pages.window.size, size)), default=0) if memory.pages is not None else 0
        for memory, size in pairs
    ]
    narrow = [size for size in sizes if 0 < size < max_seq_len]
    if narrow and sinks >= min(narrow):
        raise InputError(
            f"sink_tokens is {sinks}; it must be below the smallest attention window, {min(narrow)}, which they are "
            "part of"
        )
    return tuple(Window(size, sinks) if 0 < size < max_seq_len else NO_WINDOW for size in sizes)
