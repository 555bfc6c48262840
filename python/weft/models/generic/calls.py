"""The calls that a network's layers make to weft during one forward: attention over pages, and recurrent states.

transformers' code calls a registered attention function, which has no argument for weft's pages. So a forward makes its
`Calls` current for this thread, and the layers' functions take the memory of their layer from it. Memory is numbered in
the order of calls, because one module may be called for several layers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from weft.errors import ModelError
from weft.models.base import PagedKV
from weft.models.memory import LayerMemory, Pages
from weft.models.states import LayerStates
from weft.ops.attention import Heads, Rows, Window, attend

NAME = "weft"
"""The name of weft's functions in transformers' tables of attention and expert functions."""

PLANNING = "weft-planning"
"""The name of the attention function that only records which memory a call needs, and of its mask function."""

SETTINGS = {
    *("scaling", "softcap", "s_aux", "sliding_window", "dropout", "is_causal", "position_ids", "use_cache"),
    *("output_router_logits", "logits_to_keep"),
}
"""Arguments of attention functions that weft follows, or that don't matter for it."""

FAR = 1 << 20
"""A position beyond all windows."""


@dataclass
class Calls:
    """The memory calls of one forward over the tokens of `rows`.

    kv: the pages of attention.
    places: by number of a decoder layer, tensors [N, H] that receive copies of its input.
    live: the number of live tokens, int64 [1] on the device; None if all are live.
    count: the number of tokens.
    num_calls: the number of memory calls so far.
    rates: constants of recurrences, by number of the call. They outlive the forward.
    is_plain: whether layers compute as transformers does, on whole texts without memory.
    plan: receives the memory that each call needs, in order. Nothing is computed then. None in an ordinary forward.
    """

    rows: Rows | None = None
    kv: PagedKV | None = None
    places: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    live: Tensor | None = None
    count: int = 0
    num_calls: int = 0
    rates: dict[int, Tensor] = field(default_factory=dict)
    is_plain: bool = False
    plan: list[LayerMemory] | None = None

    def __enter__(self) -> Calls:
        self._outer, _current.calls = _current.calls, self
        return self

    def __exit__(self, *exc: object) -> None:
        _current.calls = self._outer

    def state(self) -> tuple[Rows, LayerStates]:
        """The rows, and the states of this call."""
        assert self.rows is not None and self.kv is not None and self.kv.states is not None
        layer = self.kv.states.layers[self.num_calls]
        assert layer is not None
        self.num_calls += 1
        return self.rows, layer

    def attend(self, qkv: Sequence[Tensor], heads: Heads) -> Tensor:
        """Attention of queries, keys and values [N, heads, size] over the pages of this call: [N, H, value size]."""
        query, _, value = qkv
        assert self.rows is not None and self.kv is not None
        layer = self.kv.layers[self.num_calls]
        assert layer is not None
        self.num_calls += 1
        packed = torch.cat([part.flatten(1) for part in qkv], 1)
        return attend(packed, layer, self.rows, heads).view(*query.shape[:2], value.shape[2])


class _Current(threading.local):
    calls: Calls | None = None


_current = _Current()


def current() -> Calls | None:
    """The calls of this thread's forward; None outside of one."""
    return _current.calls


def live_of(rows: Tensor) -> Tensor | None:
    """The number of live rows in `rows` [n, size], if they are those of the current forward's tokens. None if all rows
    must be computed."""
    calls = current()
    return calls.live if calls is not None and rows.shape[0] == calls.count else None


@dataclass(frozen=True)
class Visible:
    """Stands in the place of an attention mask while memory is planned. `window` is the number of keys that a query
    sees; 0 means all. `problem` says why weft can't attend with this mask."""

    window: int = 0
    problem: str = ""


def _visible(*_: object, mask_function: Callable[..., Any], **__: Any) -> Visible:
    """The mask function that transformers calls while memory is planned. It measures the window of the mask that
    transformers would make. Not all of these masks are used."""
    zero = torch.zeros((), dtype=torch.int64)

    def sees(query: int, key: int) -> bool:
        return bool(mask_function(zero, zero, zero + query, zero + key))

    try:
        if sees(FAR, FAR + 1) or not sees(FAR, FAR):
            return Visible(problem="its attention is not causal")
    except NotImplementedError:  # a tensor without data
        return Visible(problem="its attention mask depends on the tokens or on their number")
    if sees(FAR, 0):
        return Visible(0)
    near, far = 0, FAR  # the query sees the key at distance `near`, but not the one at `far`
    while far - near > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if sees(FAR, FAR - middle) else (near, middle)
    for query in (FAR + 17, FAR + 4099):
        if not sees(query, query - near) or sees(query, query - far):
            return Visible(problem="its queries see neither all earlier keys nor a sliding window of them")
    return Visible(far)


def _plan(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **settings: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers' layers call while memory is planned. Shapes as in `_attention`."""
    calls = current()
    assert calls is not None and calls.plan is not None
    if not isinstance(attention_mask, Visible):
        raise ModelError(
            f"{type(module).__name__} has an attention mask that is not transformers' causal one"
        )
    unknown = sorted(
        key
        for key, value in settings.items()
        if value is not None and value is not False and key not in SETTINGS
    )
    if unknown:
        raise ModelError(
            f"{type(module).__name__} attends with {', '.join(unknown)}, which weft does not know"
        )
    if attention_mask.problem:
        raise ModelError(attention_mask.problem)
    window = settings.get("sliding_window") or attention_mask.window
    if window != attention_mask.window:
        raise ModelError(
            f"{type(module).__name__} has a window of {window} keys, but its mask shows {attention_mask.window}"
        )
    pages = Pages(key.shape[1], key.shape[3], value.shape[3], window=Window(window))
    calls.plan.append(LayerMemory(pages))
    batch, heads, count, _ = query.shape
    return query.new_zeros(batch, count, heads, value.shape[3]), None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers' layers call, with queries, keys and values [1, heads, N, size]. Returns
    [1, N, heads, value size]."""
    calls = current()
    if calls is None:
        raise ModelError(f"{type(module).__name__} attends outside of a forward of weft")
    qkv = [part[0].transpose(0, 1) for part in (query, key, value)]
    scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    sinks = None if s_aux is None else s_aux.float()
    heads = Heads(query.shape[1], None, scale, softcap=softcap or 0.0, sink_logits=sinks)
    return calls.attend(qkv, heads)[None], None


AttentionInterface.register(NAME, _attention)
AttentionInterface.register(PLANNING, _plan)
AttentionMaskInterface.register(PLANNING, _visible)
