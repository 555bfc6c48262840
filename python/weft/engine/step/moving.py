"""Copies of whole pages that the host decided on: within the device, to the host's memory, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.engine.device.state import DecodeParts
from weft.engine.kv.pool import Move, MoveKind


@dataclass(eq=False)
class Moving:
    """Moves that are launched together; `error` is what went wrong with them. What the host then takes for there may
    not be."""

    moves: Sequence[Move]
    error: BaseException | None = None


def move_pages(parts: DecodeParts, moving: Moving) -> None:
    """Copy pages one after another, of every cache. A device function; what it raises is the moves' error."""
    try:
        for move in moving.moves:
            _copy(parts, move)
    except Exception as error:
        moving.error = error


def _copy(parts: DecodeParts, move: Move) -> None:
    host = parts.host
    for number, cache in enumerate(parts.caches):
        if move.kind is MoveKind.COPY:
            cache.page(move.target).copy_(cache.page(move.source))
            continue
        assert host is not None
        if move.kind is MoveKind.OFFLOAD:
            host.tensors[number][move.target].copy_(cache.page(move.source), non_blocking=True)
        else:
            cache.page(move.target).copy_(host.tensors[number][move.source], non_blocking=True)
