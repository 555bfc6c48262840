"""Logits processors: what a caller gives to act on the raw logits of its request, before everything else does.

A host processor is called on the engine's thread between the model's forward and sampling: the iteration waits for
it. One whose function has the attribute `allows_capture` set to True is a device function instead: it follows the rule
of `Stream.launch` and is captured with the iteration. Either sees every position that is verified; penalties, bias and
the grammar's mask act on what it leaves. One that raises ends the requests that named it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.errors import InputError


@dataclass(frozen=True, eq=False)
class LogitsProcessor:
    """A request's logits processor; `name` is how errors call it. T positions are verified, V is the vocabulary.

    On the host, `function(request_id, logits, tokens, stream, client_id)` is called for each position: `logits` is
    [1, 1, V] on the device, in the model's dtype, to be changed in place, unless the function returns a tensor of V
    values to be taken instead; `tokens` is a list of one list, the text before the position. What the function gives
    to the device must follow `stream`, a `StreamHandle`, which is torch's current stream on CUDA; what is before it
    there is done.

    Of a request that is searched by beams it is called once for all beams that live: `logits` is [1, N, V], and
    `tokens` are their N texts, in the same order. For the first token, before there are beams, each of the N that may
    live then has the prompt and its logits, and the first row counts.

    With `is_batched`, `function(request_ids, logits, tokens, stream, client_ids)` takes lists, with an entry for each
    position of all requests of the iteration that have the same function; it returns None, or a list of the same
    length, each entry None or a tensor.

    A function with `allows_capture` is called as `function(rows, logits_BTV, stream)` with `ProcessorRows`.

    `request_id` is what the function is told (None: the engine's own number).
    """

    name: str
    function: Callable[..., Any]
    is_batched: bool = False
    request_id: int | None = None
    client_id: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InputError(f"logits processor {self.name!r} is {self.function!r}; it must be a callable")

    @property
    def allows_capture(self) -> bool:
        """Whether the function is a device function."""
        return getattr(self.function, "allows_capture", False) is True


@dataclass(frozen=True)
class ProcessorRows:
    """The rows of an iteration, on the device, as a captured processor sees them.

    `active` [B] bool: the rows whose requests have this processor; the others are somebody else's, or only pad, and
    what is done to them is dropped. `slots` [B] int64 and `request_ids` [B] int64: a slot is one request's until
    another id shows up there, so state may be kept by slot; not of beams, whose texts change slots. `tokens` [B, T]
    int64: the last token of the text, then the drafts (-1: none, and none after it). `lengths` [B] int64: tokens of
    the text, up to that last one. Row b's position t follows a text of lengths[b] + t tokens that ends with
    tokens[b, t].
    """

    active: Tensor
    slots: Tensor
    request_ids: Tensor
    tokens: Tensor
    lengths: Tensor
