"""Integers that no double holds: a library that reads numbers as doubles takes them for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.grammar.schema.structure import shown

MAX_INT64 = (1 << 63) - 1
EXACT_IN_DOUBLES = 1 << 53


def mistaken(node: dict[str, Any], exact: int) -> Iterator[str]:
    """The listed values that are others as doubles, where a library holds integers up to `exact` as they are."""
    for value in (*node.get("enum", ()), node.get("const")):
        for number in _integers(value):
            if abs(number) > exact and _as_double(number) != number:
                yield f"value {shown(number)} has more digits than a double holds"


def loosened(node: dict[str, Any], holds_integers: bool = False) -> Iterator[str]:
    """The bounds that let more through as doubles. Those of integers are cut to 64 bits; with `holds_integers` they are
    exact."""
    is_integer = node.get("type") == "integer"
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"):
        bound = node.get(key)
        if type(bound) is not int or (is_integer and holds_integers and key != "multipleOf"):
            continue
        read = _as_double(bound)
        if is_integer and key != "multipleOf":
            read = max(-MAX_INT64 - 1, min(read, MAX_INT64))
        if read < bound if "inimum" in key else read > bound if "aximum" in key else read != bound:
            yield f"{key} {shown(bound)} has more digits than a double holds"


def _as_double(number: int) -> float:
    try:
        return int(float(number))
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _integers(value: Any) -> Iterator[int]:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif type(part) is int:
            yield part
