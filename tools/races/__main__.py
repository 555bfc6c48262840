"""Removes each wait and each event record in turn, and prints the run that notices it.

    PYTHONPATH=tools:tests .venv/bin/python -m races [part of a site's name]

Run it in a process without engines: forks of one with engines would lack their threads.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

from races.faults import FAULTS
from races.harness import Run, notice_all
from races.parts import PARTS, recording
from races.removal import remove
from races.runs import RUNS, beams, captured_loop, given_split, plain, processors, split
from races.sites import NOT_HERE, NOT_SEEN, Site, sites

for module in ("transformers", "xgrammar", "llguidance"):  # imported once, before all forks
    importlib.import_module(module)

FIRST: dict[str, list[Run]] = {
    "engine/features/flight_recorder.py": [recording],
    "engine/features/processors.py": [processors],
    "engine/device/results.py": [plain],
    "engine/runner/graphs.py": FAULTS,
    "engine/runner/prompts.py": FAULTS,
    "engine/runner/in_flight.py": FAULTS,
    "engine/runner/runner.py": [beams, *FAULTS],
    "engine/engine.py": FAULTS,
    "engine/output.py": FAULTS,
    "engine/device/tensors.py": FAULTS,
    "guided/state.py": [recording],
    "guided/grammar_stream.py": [captured_loop, split, given_split],
}
"""For each file, the runs that most likely notice a removed call. They run before all others."""

QUICK = [run for run in PARTS if run is not recording]
EVERY: list[Run] = [*QUICK, *RUNS, *FAULTS, recording]


def order(path: str) -> list[Run]:
    """Return all runs, the likely ones first."""
    first = [*QUICK, *FIRST.get(path, [])]
    return [*first, *(run for run in EVERY if run not in first)]


def main(part: str = "") -> int:
    began, missed, found = time.monotonic(), list[str](), 0
    chosen = [site for site in sites() if part in str(site)]
    changes = [(str(site), partial(remove, site), order(site.path)) for site in chosen]
    changes.append(("nothing", lambda: None, EVERY))
    for name, noticed in notice_all(EVERY, changes, os.cpu_count() or 1):
        print(f"{noticed.seconds:6.1f} s  {name}: {noticed.run} {noticed.how[:160]}", flush=True)
        found += name != "nothing" and noticed.run is not None
        if (noticed.run is None) != (name == "nothing"):
            missed.append(name)
    for path, why in NOT_HERE.items():
        print(f"not here: {path}, which {why}")
    for function, why in NOT_SEEN.items():
        print(f"not seen: {function}, which {why}")
    print(f"{found} of {len(chosen)} removed calls were noticed in {time.monotonic() - began:.0f} s")
    for name in missed:
        print(f"WRONG: {name}", file=sys.stderr)
    return len(missed)


if __name__ == "__main__":
    assert Site  # the type of the removed calls
    sys.exit(min(main(*sys.argv[1:]), 1))
