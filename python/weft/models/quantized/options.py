"""Options of quantised checkpoints in config.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.fields import LARGEST, Fields

ADVICE = "use the original model, in bfloat16, or one in FP8, AWQ, GPTQ, compressed-tensors or GGUF"


def option(settings: Fields, key: str, default: Any, also: Sequence[str] = ()) -> tuple[str, Any]:
    """The first of `key` and `also` that has a value, with the value; `key` and `default` if none has one."""
    for each in (key, *also):
        if settings.data.get(each) is not None:
            return each, settings.data[each]
    return key, default


def must_be(
    settings: Fields, key: str, default: Any, allowed: Sequence[Any], also: Sequence[str] = ()
) -> Any:
    """The value of an option. Raises `ModelError` for one that weft does not read."""
    key, value = option(settings, key, default, also)
    # True is 1 in Python.
    if not any(value == each and type(value) is type(each) for each in allowed):
        expected = " or ".join(map(repr, allowed))
        raise settings.error(key, f"is {repr(value)[:60]}; weft reads {expected}; {ADVICE}")
    return value


def group_size(settings: Fields, default: int | None, also: Sequence[str] = ()) -> int:
    """The number of inputs with one factor: a multiple of 32, or 0 for -1, which means all. Raises `ModelError`."""
    key, value = option(settings, "group_size", default, also)
    if type(value) is int and value == -1:
        return 0
    if type(value) is not int or not 0 < value <= LARGEST or value % 32:  # True is an int, too
        raise settings.error(key, f"is {repr(value)[:60]}; weft reads -1 and multiples of 32; {ADVICE}")
    return value
