"""Attention on CUDA, in Triton: rows of few new tokens in one kernel, others in two."""

from __future__ import annotations

from typing import Any

from weft.ops.attend_few_triton import FEW_TOKENS, attend_few
from weft.ops.attend_long_triton import attend_long
from weft.ops.attention_parts_triton import Call


def attend(*args: Any) -> None:
    """See `weft.ops.attention.attend`."""
    call = Call(*args)
    if call.width <= FEW_TOKENS:
        attend_few(call)
    else:
        attend_long(call)
