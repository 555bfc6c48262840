"""Breaks down the extra time of a guided iteration, relative to an unguided one on the same engine, by task.

Unguided and guided requests alternate on the engine, and every iteration is recorded. The time of a task is its sum
over an iteration. The difference is the median over turns of the difference within a turn. Gaps between two tasks of
the model's stream are split by whether the grammar stream was busy during them. The rest is the host's time.

On a GPU the profiler records only kernels and copies. The grammar's tasks, and waits for them, appear as gaps
between tasks (`docs/overhead.md`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from weft.trace import Slice, record_on, track_names, write_chrome
from weft.trace.timeline import busy
from weft_bench.engine.models import Bench
from weft_bench.engine.paired import GUIDE, Setting, Side

BLOCK = 4
ROOM = 64
SHOWN = 2 * BLOCK
"""The number of iterations of each side in the trace."""

MODEL, GRAMMAR = "model stream", "grammar stream"
WAITS = "waits while the grammar works"
GAPS = "between tasks"
HOST = "planning, launching, reading"
WHOLE = ("all", "the iteration")
PAUSE_US = 50.0


@dataclass(frozen=True)
class Recorded:
    """Iterations that were recorded together, with their total duration."""

    turns: int
    total_us: float
    slices: list[Slice]

    @property
    def busy_us(self) -> float:
        """The microseconds of an iteration in which a task ran, on any stream."""
        return sum(end - begin for begin, end in busy(self.slices)) / self.turns

    def tasks(self) -> dict[tuple[str, str], float]:
        """Return the microseconds of an iteration by stream and task."""
        names, found = track_names(self.slices), dict[tuple[str, str], float]()
        for s in self.slices:
            key = (names[s.stream], s.label.partition(": ")[0])  # the launched function's name, if any
            found[key] = found.get(key, 0.0) + (s.end_us - s.begin_us) / self.turns
        waits, gaps = idle(
            [s for s in self.slices if names[s.stream] == MODEL],
            [s for s in self.slices if names[s.stream] == GRAMMAR],
        )
        span = max(s.end_us for s in self.slices) - min(s.begin_us for s in self.slices)
        found[MODEL, WAITS], found[MODEL, GAPS] = waits / self.turns, gaps / self.turns
        found["host", HOST] = max(0.0, self.total_us - span) / self.turns
        return found


@dataclass(frozen=True)
class Turn:
    """The recordings of both sides in a turn."""

    plain: list[Recorded]
    guided: list[Recorded]

    def of(self, plain: Side, guided: Side) -> list[tuple[Side, list[Recorded]]]:
        """Return each side with its list of recordings."""
        return [(plain, self.plain), (guided, self.guided)]

    def tasks(self) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
        """Return the microseconds of an iteration by stream and task, for each side. They are medians over its
        recordings."""
        return medians(self.plain), medians(self.guided)


def medians(recorded: Sequence[Recorded]) -> dict[tuple[str, str], float]:
    """Return the median microseconds of an iteration by stream and task, and of the whole iteration."""
    found = [{**r.tasks(), WHOLE: r.total_us / r.turns} for r in recorded]
    keys = dict.fromkeys(key for tasks in found for key in tasks)
    return {key: median(tasks.get(key, 0.0) for tasks in found) for key in keys}


def breakdown(
    bench: Bench,
    batch: int,
    num_drafts: int,
    iterations: int,
    context: int,
    trace: Path | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each task in the order of the guided iteration, over at least `iterations` of each side. The
    last row is the whole iteration. Prompts have `context` tokens. Some iterations of both sides are written to
    `trace`."""
    side_of = partial(Side, Setting(bench, batch, num_drafts, context + ROOM, context))
    plain = side_of(None)
    guided = side_of(GUIDE, engine=plain.engine)
    on_cpu = bench.runtime.device.type == "cpu"
    turns: list[Turn] = []
    while sum(r.turns for turn in turns for r in turn.guided) < iterations:
        turn = Turn([], [])
        for side, recorded in (*turn.of(plain, guided), *reversed(turn.of(plain, guided))):
            side.fill()
            for _ in range(BLOCK if on_cpu else 1):
                recorded += one(bench, side, 1 if on_cpu else BLOCK)
            side.leave()
        if turn.plain and turn.guided:
            turns.append(turn)
    plain.engine.close()
    if trace is not None:
        write(turns, trace)
    return table(turns)


def recordings(bench: Bench, side: Side, iterations: int) -> list[Recorded]:
    """Record at least `iterations` of a side, one or some at a time."""
    turns = 1 if bench.runtime.device.type == "cpu" else BLOCK
    recorded: list[Recorded] = []
    side.fill()
    while turns * len(recorded) < iterations:
        recorded += one(bench, side, turns)
    return recorded


def one(bench: Bench, side: Side, turns: int) -> list[Recorded]:
    """Record `turns` iterations of the whole batch. Returns [] if a request ended in them."""
    with record_on(bench.runtime) as slices:
        begin = time.perf_counter()
        for _ in range(turns):
            side.engine.step()
        total_us = (time.perf_counter() - begin) * 1e6
    if not side.is_whole:
        side.fill()
        return []
    return [Recorded(turns, total_us, slices)]


def idle(model: Sequence[Slice], grammar: Sequence[Slice]) -> tuple[float, float]:
    """Return the microseconds in which no task of the model ran, between its first and its last one: first those in
    which a grammar task ran, then the others."""
    ordered = sorted(model, key=lambda s: s.begin_us)
    waits, gaps, end = 0.0, 0.0, ordered[0].end_us
    for s in ordered[1:]:
        if s.begin_us > end:
            busy = covered(grammar, end, s.begin_us)
            waits, gaps = waits + busy, gaps + s.begin_us - end - busy
        end = max(end, s.end_us)
    return waits, gaps


def covered(slices: Sequence[Slice], begin_us: float, end_us: float) -> float:
    """Return the part of an interval that slices of one stream cover. The slices do not overlap."""
    return sum(max(0.0, min(s.end_us, end_us) - max(s.begin_us, begin_us)) for s in slices)


def table(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return a row for each task of either side, streams first and the whole iteration last."""
    both = [turn.tasks() for turn in turns]
    keys = dict.fromkeys(key for plain, guided in both for key in (*guided, *plain))
    rows = []
    for key in sorted(keys, key=lambda key: (key == WHOLE, key[0] == "host", key[1] in (WAITS, GAPS))):
        pairs = [(plain.get(key, 0.0), guided.get(key, 0.0)) for plain, guided in both]
        stream, task = key
        rows.append(
            {
                "stream": stream,
                "task": task,
                "unguided_us": round(median(plain for plain, _ in pairs), 1),
                "guided_us": round(median(guided for _, guided in pairs), 1),
                "difference_us": round(median(guided - plain for plain, guided in pairs), 1),
            }
        )
    return rows


def write(turns: Sequence[Turn], path: Path) -> None:
    """Write some iterations of both sides to a trace, one after the other. An extra track names the side."""
    slices: list[Slice] = []
    names: dict[int, str] = {}
    at, track = 0.0, -1
    for name, recorded in (
        ("unguided", [r for turn in turns for r in turn.plain]),
        ("guided", [r for turn in turns for r in turn.guided]),
    ):
        left = SHOWN
        for r in recorded:
            if left <= 0:
                break
            found = track_names(r.slices)
            names |= found
            span = max(s.end_us for s in r.slices)
            slices.append(Slice(f"{name} x {r.turns}", "turn", track, 0, at, at + span))
            slices += [replace(s, begin_us=s.begin_us + at, end_us=s.end_us + at) for s in r.slices]
            at, left = at + span + PAUSE_US, left - r.turns
    write_chrome(slices, path, {track: "iterations", **names})
