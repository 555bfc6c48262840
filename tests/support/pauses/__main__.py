"""Pause a process at random while it answers: `python -m support.pauses [guides|tools] [--pauses 200]`, in `tests`."""

from __future__ import annotations

import argparse
import sys

from support.pauses.pausing import pause_at_random
from support.pauses.work import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m support.pauses", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=list(KINDS), default="guides")
    parser.add_argument("--pauses", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    paused = pause_at_random(asked.kind, asked.pauses, asked.seed)
    for each in paused.wrong:
        print(each)
    print(
        f"{paused.num_pauses} pauses, {paused.paused_s:.0f} s in all: {paused.num_answers} answers, "
        f"{len(paused.wrong)} of them wrong or ended"
    )
    return int(bool(paused.wrong))


if __name__ == "__main__":
    sys.exit(main())
