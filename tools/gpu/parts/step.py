"""Times an iteration at the shape of Llama 3.1 8B and its EAGLE3 head, relative to the bound by memory bandwidth.
Rows are written as soon as they are measured.

    step.py quick    batch 1, without drafts and with 3: plain, guided, polled, eager; times by kernel; nodes
    step.py variants  batch 1 without drafts, plain, by variant of the kernels (`weft.ops.variants`)
    step.py more     larger batches, plain and guided
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from answers import DEVICE, ON_GPU, Answers, answers, left, say, shown

from weft.config import Graphs, HostTasks
from weft.engine.engine import Engine
from weft.engine.runner.step import GuidedLogits, Plan
from weft.grammar.guide import Guide
from weft.ops.variants import NAMED, using
from weft.trace.record import record_on
from weft_bench.engine.bandwidth import copy_bandwidth, traffic
from weft_bench.engine.models import Bench, shape_of
from weft_bench.engine.paired import GUIDE, SIMULATED, Setting, Side

SHAPE = "llama-8b-eagle3" if ON_GPU else "small"
PROMPT, ROOM, ITERATIONS = (512, 256, 48) if ON_GPU else (16, 112, 4)
BLOCK = 12
TURNS = 2 if ON_GPU else 1
PROFILED = 8 if ON_GPU else 2
LARGER = ((4, 3), (16, 0), (4, 0), (16, 3), (64, 0)) if ON_GPU else ((2, 3),)
"""Pairs of batch size and number of drafts, the most informative first."""


@dataclass(frozen=True)
class Way:
    """A way to run the engine, and the guides to measure with it."""

    guides: tuple[Guide | None, ...] = (None, GUIDE)
    graphs: Graphs = "one"
    host_tasks: HostTasks = "callback"

    def name(self, guide: Guide | None) -> str:
        parts = ["guided" if guide else "plain"]
        parts += ["polled"] * (self.host_tasks == "polling") + [f"graphs {self.graphs}"] * (
            self.graphs != "one"
        )
        return ", ".join(parts)


class Case:
    """Engines with the same batch size, number of drafts and weights."""

    def __init__(self, bench: Bench, bandwidth: float, batch: int, drafts: int) -> None:
        self.bench, self.batch, self.drafts = bench, batch, drafts
        self.sides: dict[str, Side] = {}
        self.engines: list[Engine] = []
        self._bandwidth = bandwidth

    @property
    def title(self) -> str:
        return f"{SHAPE}, batch {self.batch}, {self.drafts} drafts"

    def add(self, way: Way) -> dict[str, Any]:
        """Build an engine, and a `Side` for each guide."""
        begin = time.perf_counter()
        simulated = SIMULATED if self.drafts else None
        length = PROMPT + ROOM
        engine = self.bench.engine(self.batch, length, self.drafts, simulated, way.graphs, way.host_tasks)
        self.engines.append(engine)
        setting = Setting(self.bench, self.batch, self.drafts, length, PROMPT)
        for guide in way.guides:
            self.sides[way.name(guide)] = Side(setting, guide, engine=engine)
        return {"seconds": time.perf_counter() - begin, "host tasks": engine.config.host_tasks}

    def measure(self) -> dict[str, Any]:
        """Measure each side in several turns. Returns the smallest of the turns' medians, in microseconds and as a
        multiple of the bound."""
        found: dict[str, list[float]] = defaultdict(list)
        failed: dict[str, str] = {}
        context = float(PROMPT)
        for turn in range(TURNS):
            for name, side in list(self.sides.items())[:: 1 if turn % 2 == 0 else -1]:
                try:
                    found[name].append(self._time(side))
                    context = side.context
                except Exception as error:  # go on with the other sides
                    traceback.print_exc()
                    failed[name] = f"FAILED {type(error).__name__}: {str(error)[:120]}"
        read = traffic(self.bench.model.config, self.bench.head, self.batch, self.drafts, context)
        bound = read.total / self._bandwidth * 1e6
        rows = {
            name: {"us": min(us), "times the bound": round(min(us) / bound, 3), "turns": us}
            for name, us in found.items()
        }
        return {"read GB": read.total / 1e9, "bound us": bound, **rows, **failed}

    def _time(self, side: Side) -> float:
        side.forget(0)
        while len(side.seconds) < ITERATIONS:
            side.block(BLOCK)
        side.leave()
        return side.us

    def table(self, name: str, most: int) -> dict[str, Any]:
        """Profile an iteration kernel by kernel with torch's profiler. With programmatic launch, a kernel's time
        includes its wait for the kernel before it, so the sum may exceed the span."""
        side = self.sides[name]
        side.fill()
        with record_on(self.bench.runtime, with_grids=True) as slices:
            for _ in range(PROFILED):
                side.engine.step()
        side.leave()
        times: dict[str, list[float]] = defaultdict(list)
        for each in slices:
            times[each.label[:60]].append(each.end_us - each.begin_us)
        ordered = sorted(times.items(), key=lambda item: -sum(item[1]))
        lines = {
            label: {"us": sum(us) / PROFILED, "times": len(us) / PROFILED, "us each": sum(us) / len(us)}
            for label, us in ordered
        }
        main = Counter(each.stream for each in slices).most_common(1)[0][0]
        own = sorted((each.begin_us, each.end_us) for each in slices if each.stream == main)
        gaps = [max(0.0, after[0] - before[1]) for before, after in pairwise(own)]
        span = max(each.end_us for each in slices) - min(each.begin_us for each in slices)
        figures = {
            "span us": span / PROFILED,
            "tasks": len(slices) / PROFILED,
            "gaps of the model's stream us": sum(gaps) / PROFILED,
            "median gap us": median(gaps or [0.0]),
        }
        say(f"table of {self.title}, {name}: {shown(figures)}")
        for label, line in list(lines.items())[:most]:
            say(f"   {line['us']:.1f} us, {line['times']:.1f} x {line['us each']:.2f}: {label}")
        return {**figures, "kernels": lines}

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def nodes(self) -> dict[str, Any]:
        found = {}
        for guides in (GuidedLogits.NONE, GuidedLogits.DRAFTS if self.drafts else GuidedLogits.TARGET):
            dump = self.engines[0].graphs.dump(Plan(self.batch, self.drafts, guides))
            kinds = Counter(kind for kind, _ in dump.nodes)
            found[guides.name.lower()] = {**kinds, "edges": len(dump.edges)}
        return found


def run(part: Answers, case: Case, ways: Sequence[Way]) -> None:
    for way in ways:
        # The first engine is the purpose of the case. Others are built only if there is enough time.
        needs = 20 if way is ways[0] else 45
        part.ask(f"{case.title}: an engine of {way.name(way.guides[-1])}", case.add, way, needs=needs)
    part.ask(f"{case.title}: an iteration", case.measure, needs=10)


def quick(part: Answers, bench: Bench, bandwidth: float) -> None:
    ways = [Way(), Way((GUIDE,), host_tasks="polling"), Way((None,), graphs="none")]
    for drafts in (0, 3):
        with closing(Case(bench, bandwidth, 1, drafts)) as case:
            run(part, case, ways)
            tables = {"plain": 13} if drafts == 0 else {"plain": 7, "guided": 12}
            for name, most in tables.items():
                part.tell(f"table of {case.title}, {name}", case.table, name, most, needs=8)
            part.ask(f"{case.title}: nodes", case.nodes, needs=5)


def variants(part: Answers, bench: Bench, bandwidth: float) -> None:
    for name in NAMED:
        with using(name), closing(Case(bench, bandwidth, 1, 0)) as case:
            part.ask(f"{name}: an iteration", in_variant, case, needs=6)


def in_variant(case: Case) -> dict[str, Any]:
    case.add(Way((None,)))
    found = case.measure()
    return {"bound us": found["bound us"], **found["plain"]}


def more(part: Answers, bench: Bench, bandwidth: float) -> None:
    for batch, drafts in LARGER:
        with closing(Case(bench, bandwidth, batch, drafts)) as case:
            run(part, case, [Way()])


def main(which: str) -> None:
    with answers(f"step-{which}") as part:
        begin = time.perf_counter()
        bench = Bench.random(DEVICE, shape_of(SHAPE))
        bench.runtime.synchronize()
        made = time.perf_counter() - begin
        bandwidth = copy_bandwidth(bench.runtime)
        bench.compiler.submit(GUIDE).result()
        part.ask("weights", lambda: {"seconds": made, "GB/s of a copy": bandwidth / 1e9, "left s": left()})
        {"quick": quick, "variants": variants, "more": more}[which](part, bench, bandwidth)
        bench.close()


if __name__ == "__main__":
    main(sys.argv[1])
