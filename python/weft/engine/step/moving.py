"""Copies of whole pages that the host decided on: within the device, to the host's memory, and back."""

from __future__ import annotations

from collections.abc import Sequence

from weft.engine.device.state import DecodeParts
from weft.engine.kv.moves import Move, MoveKind


def move_pages(parts: DecodeParts, moves: Sequence[Move]) -> None:
    """Copy pages one after another, of every cache. A device function."""
    host = parts.host
    for number, cache in enumerate(parts.caches):
        for kind, source, target in moves:
            if kind is MoveKind.COPY:
                cache.page(target).copy_(cache.page(source))
                continue
            assert host is not None
            if kind is MoveKind.OFFLOAD:
                host.tensors[number][target].copy_(cache.page(source), non_blocking=True)
            else:
                cache.page(target).copy_(host.tensors[number][source], non_blocking=True)
