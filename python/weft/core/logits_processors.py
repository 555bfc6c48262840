"""Logits processors: functions of a caller that change the raw logits of its requests, before all other rules.

A host processor is called on the engine's thread between the model's forward and sampling, and the iteration waits for
it. A function with the attribute `allows_capture` set to True is a device processor: it follows the rule of
`Stream.launch` and is captured with the iteration. Both kinds see every position that is verified. Penalties, bias and
the grammar's mask apply to the processor's result. If a processor raises, the requests that use it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.errors import InputError


@dataclass(frozen=True, eq=False)
class LogitsProcessor:
    """A request's logits processor. `name` is its name in errors. T positions are verified; V is the vocabulary size.

    On the host, `function(request_id, logits, tokens, stream, client_id)` is called for each position. `logits` is
    [1, 1, V] on the device, in the model's dtype. The function changes it in place, or returns a tensor of V values
    that replaces it. `tokens` is a list of one list: the text before the position. The function's device work must
    be on `stream`, a `StreamHandle`, which is torch's current stream on CUDA. Earlier work on it is complete.

    For a beam search the function is called once for all active beams: `logits` is [1, N, V], and `tokens` are their N
    texts in the same order. At the first token there are no beams yet: all N rows hold the prompt and its logits, and
    only the first row is used.

    With `is_batched`, `function(request_ids, logits, tokens, stream, client_ids)` takes lists, with an entry for each
    position of all requests of the iteration that have the same function. It returns None, or a list of the same
    length, each entry None or a tensor.

    A function with `allows_capture` is called as `function(rows, logits_BTV, stream)` with `ProcessorRows`.

    `request_id` is the number that is passed to the function (None: the engine's number).
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
        """Whether the function is a device processor."""
        return getattr(self.function, "allows_capture", False) is True


@dataclass(frozen=True)
class ProcessorRows:
    """The rows of an iteration as a device processor sees them. All tensors are on the device.

    - `active` [B] bool: rows of requests with this processor. Other rows belong to other requests or are padding;
      changes to them are discarded.
    - `slots` [B] int64 and `request_ids` [B] int64: a slot belongs to one request until another id appears in it, so a
      processor may keep state by slot. This does not hold for beams, whose texts change slots, or for several
      answers of a request, which have the same id.
    - `tokens` [B, T] int64: the last token of the text, then the drafts. -1 ends the drafts.
    - `lengths` [B] int64: tokens of the text, including that last token.

    Position t of row b follows a text of lengths[b] + t tokens that ends with tokens[b, t].
    """

    active: Tensor
    slots: Tensor
    request_ids: Tensor
    tokens: Tensor
    lengths: Tensor
