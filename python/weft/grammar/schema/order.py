"""Objects in other orders of their properties.

Libraries take properties in the order in which a schema names them. To the specification they have none. Where objects
are left open as it has them, those that name few properties come in each order, and others also with the required ones
first, in the order in which they are required.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import factorial

from weft.grammar.schema.write import Piece

MAX_PROPERTIES = 4
MAX_PIECES = 48

Names = tuple[str, ...]


def in_each_order(pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces, and those of objects again in other orders."""
    are_few = _are_few(pieces)
    for piece in pieces:
        yield piece
        for names in _orders(piece, are_few):
            properties = piece.schema["properties"]
            ordered = {
                name: properties[name] for name in (*names, *(n for n in properties if n not in names))
            }
            yield Piece({**piece.schema, "properties": ordered}, piece.needs)


def lack_orders(pieces: list[Piece]) -> bool:
    """Whether these have orders that `in_each_order` does not give."""
    most = MAX_PROPERTIES if _are_few(pieces) else 1
    return any(len(_names(piece)) > most for piece in pieces)


def _are_few(pieces: list[Piece]) -> bool:
    counts = [
        factorial(len(names)) if len(names := _names(piece)) <= MAX_PROPERTIES else 2 for piece in pieces
    ]
    return sum(counts) <= MAX_PIECES


def _orders(piece: Piece, are_few: bool) -> Iterator[Names]:
    """Other orders than the one that it has."""
    names = _names(piece)
    if are_few and len(names) <= MAX_PROPERTIES:
        orders = permutations(names)
        next(orders)  # the one that it has
        yield from orders
        return
    required = tuple(name for name in piece.schema.get("required", ()) if name in names)
    first = (*required, *(name for name in names if name not in required))
    if first != names:
        yield first


def _names(piece: Piece) -> Names:
    """The properties that it may have."""
    properties = piece.schema.get("properties", {})
    return tuple(name for name, value in properties.items() if value is not False)
