"""Records the work of the CPU runtime's streams, and selects the part that one tenant may see.

A recording covers the whole process: every engine, and in each iteration every sequence of the batch. Grammar tasks,
kernels and their durations reveal what the other sequences of the batch do. So a tenant sees slices only from times
at which every running sequence is its own. If other tenants' sequences share an iteration, the tenant gets only the
iteration's begin and end, which it can also measure by the arrival of its tokens. It sees nothing of iterations in
which it has no sequence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from weft.engine.engine import Engine
from weft.engine.stats import StepRecord
from weft.server.models import ServedModel
from weft.trace import Slice, record, track_names

MAX_SLICES = 5000
MIN_LAUNCHES = 4
"""A recording that waits for a tenant's requests holds at least this many launches with them."""
POLL_S = 0.01


@dataclass(frozen=True)
class Span:
    """The time between two steps of an engine, in seconds of `time.perf_counter`, and the client ids of all sequences
    that may have run in it."""

    begin: float
    end: float
    clients: frozenset[int | None]


class Occupancy:
    """The clients of an engine's sequences over time. It is an observer of the engine's steps."""

    # The engine's thread holds observers, so this must not reference the client.

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._marks: list[tuple[float, frozenset[int | None]]] | None = None

    def note(self, step: StepRecord | None = None, took: Sequence[object] = ()) -> None:
        """Note the clients of the running and in-flight sequences, if a recording is under way. Runs on the engine's
        thread, after each launch."""
        if self._marks is None:
            return
        in_flight = (s for batch in self._engine.output.in_flight for s in batch.sequences)
        clients = {s.request.client_id for s in (*self._engine.running, *in_flight)}
        self._marks.append((time.perf_counter(), frozenset(clients)))

    def begin(self) -> None:
        """Begin to note. Runs on the engine's thread."""
        self._marks = []
        self.note()

    def num_launches(self, client_id: int) -> int:
        """Return the number of noted launches with sequences of a client. Runs on any thread while it notes."""
        return sum(client_id in clients for _, clients in self._marks or [])

    def end(self) -> list[Span]:
        """End. Runs on the engine's thread. Returns the spans since `begin`, without gaps.

        A launch precedes its note, so the work between two notes is of sequences of either."""
        self.note()
        marks, self._marks = self._marks or [], None
        return [Span(a, b, before | after) for (a, before), (b, after) in pairwise(marks)]


async def timeline(
    models: Iterable[tuple[ServedModel, Occupancy]],
    shown: ServedModel,
    client_id: int,
    seconds: float,
    wait_seconds: float = 0.0,
) -> dict[str, Any]:
    """Record for `seconds`, and return the part of the tenant `client_id` as JSON.

    With `wait_seconds` the `seconds` begin once `shown` has launched some iterations of the tenant, or after
    `wait_seconds` at the latest. The recording covers the wait, so it misses no part of a short answer.

    It has `tracks` with the streams' names, `slices`, and `shared`: the iterations of `shown` that other tenants'
    sequences share. Times are in microseconds since the beginning. The caller ensures that only one recording runs at
    a time."""
    listed = list(models)
    (occupancy_of_shown,) = (occupancy for model, occupancy in listed if model is shown)
    spans: dict[str, list[Span]] = {}
    try:
        for model, occupancy in listed:
            await asyncio.to_thread(model.client.call, occupancy.begin)
        began = time.perf_counter()
        with record(began) as slices:
            await _launches(shown, occupancy_of_shown, client_id, began + wait_seconds)
            await asyncio.sleep(seconds)
    finally:
        for model, occupancy in listed:
            spans[model.name] = await asyncio.to_thread(model.client.call, occupancy.end)
    iterations = with_others(spans.pop(shown.name), [span for others in spans.values() for span in others])
    windows, shared = parts_of(iterations, client_id)
    visible = within(slices, [((a - began) * 1e6, (b - began) * 1e6) for a, b in windows])[:MAX_SLICES]
    return {
        "tracks": [{"stream": stream, "name": name} for stream, name in track_names(visible).items()],
        "slices": [
            {
                "label": piece.label,
                "kind": piece.kind,
                "stream": piece.stream,
                "begin_us": round(piece.begin_us, 1),
                "end_us": round(piece.end_us, 1),
            }
            for piece in visible
        ],
        "shared": [
            {"begin_us": round((a - began) * 1e6, 1), "end_us": round((b - began) * 1e6, 1)}
            for a, b in shared
        ],
    }


async def _launches(model: ServedModel, occupancy: Occupancy, client_id: int, limit: float) -> None:
    """Wait until a model has launched `MIN_LAUNCHES` iterations of a client, or the client's requests have ended after
    fewer, or `limit` in seconds of `time.perf_counter`."""
    while time.perf_counter() < limit:
        count = occupancy.num_launches(client_id)
        if count >= MIN_LAUNCHES or (count and not model.client.engine.running):
            return
        await asyncio.sleep(POLL_S)


def with_others(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return `spans`, each with the clients of the overlapping `others` of other engines. The engines share the device,
    and a slice does not tell its engine."""
    return [
        Span(
            span.begin,
            span.end,
            span.clients.union(*(o.clients for o in others if o.begin < span.end and span.begin < o.end)),
        )
        for span in spans
    ]


def parts_of(
    spans: Sequence[Span], client_id: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the time windows without other clients, neighbours joined, and the spans that the client shares with
    others."""
    windows: list[tuple[float, float]] = []
    shared: list[tuple[float, float]] = []
    for span in spans:
        if span.clients <= {client_id}:
            is_next = windows and windows[-1][1] == span.begin
            begin = windows.pop()[0] if is_next else span.begin
            windows.append((begin, span.end))
        elif client_id in span.clients:
            shared.append((span.begin, span.end))
    return windows, shared


def within(slices: Iterable[Slice], windows: Sequence[tuple[float, float]]) -> list[Slice]:
    """Return the slices that lie within one of the windows, sorted by their begin. The windows are sorted and
    disjoint."""
    kept: list[Slice] = []
    remaining = list(reversed(windows))
    for piece in sorted(slices, key=lambda piece: piece.begin_us):
        while remaining and remaining[-1][1] <= piece.begin_us:
            remaining.pop()
        if remaining and remaining[-1][0] <= piece.begin_us and piece.end_us <= remaining[-1][1]:
            kept.append(piece)
    return kept
