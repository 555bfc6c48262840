"""Fuzzes the matchers of every backend, and iterations over them, against oracles that replay each text.

    python tools/fuzz_matchers.py [--minutes 10] [--seed 0] [--backends xgrammar,guides] [--round N]

Each round takes one guide under one backend of the registry (or a kind of guide that needs no library) and makes some
hundred calls (`tests/support/grammar/matcher_fuzz.py`). Every fourth round runs iterations of `GuidedState` with
several guides (`tests/support/grammar/state_fuzz.py`). The seed and the round's number determine a round. After a
difference, the script prints the `--round` that repeats it, and exits with 1.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.grammar import fuzz_cases, matcher_fuzz, state_fuzz
from weft.grammar import CompiledGuide

CALLS = 300
ITERATIONS = 60
STATE_EVERY = 4


@functools.cache
def cases_of(backend: str) -> list[fuzz_cases.Case]:
    """Return all cases of a backend."""
    return list(fuzz_cases.cases(backend))


@functools.lru_cache(maxsize=256)
def compiled(case: fuzz_cases.Case) -> CompiledGuide | None:
    """Return a case's guide, compiled once; None if it does not compile."""
    return fuzz_cases.compiled(case)


def play(seed: int, number: int, backends: list[str], done: Counter[str]) -> None:
    """Run one round. Raises an error if there is a difference."""
    backend = backends[number % len(backends)]
    rng = random.Random(f"{seed}/{number}")
    if number // len(backends) % STATE_EVERY == STATE_EVERY - 1:
        iterate(backend, rng)
        done[f"{backend}: iterations"] += ITERATIONS
        return
    case = rng.choice(cases_of(backend))
    guide = compiled(case)
    if guide is None:
        done[f"{backend}: guides it refuses"] += 1
        return
    fuzz = matcher_fuzz.MatcherFuzz(guide, case.vocabulary, rng, case.is_native)
    try:
        fuzz.run(CALLS)
    except matcher_fuzz.Difference as error:
        raise matcher_fuzz.Difference(
            f"{backend}, {case.name}, {case.vocabulary.vocab_size} tokens: {error}"
        ) from error
    done[f"{backend}: calls"] += fuzz.num_calls


def iterate(backend: str, rng: random.Random) -> None:
    """Run iterations of a state over some of the backend's guides. Whether drafts are masked, and the number of
    workers, are random."""
    small = [case for case in cases_of(backend) if case.vocabulary is fuzz_cases.vocabularies()[0]]
    guides = [guide for case in rng.choices(small, k=6) if (guide := compiled(case)) is not None]
    max_drafts, guided, workers = rng.choice([0, 1, 3, 8]), rng.random() < 0.5, rng.choice([0, 2])
    decoding = state_fuzz.Decoding(
        [[guide] for guide in guides], max_drafts, guided, rng.getrandbits(32), workers
    )
    for _ in range(ITERATIONS):
        decoding.iterate()
    assert decoding.state.num_failed == 0, "a slot failed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--backends", type=str, default="", help="some of " + ", ".join(fuzz_cases.backends())
    )
    parser.add_argument("--round", type=int, help="only this one")
    args = parser.parse_args()
    backends = args.backends.split(",") if args.backends else fuzz_cases.backends()
    done: Counter[str] = Counter()
    start = told = time.monotonic()
    number = args.round or 0
    while True:
        try:
            play(args.seed, number, backends, done)
        except Exception as error:
            print(error if isinstance(error, AssertionError) else repr(error))
            again = f" --backends '{args.backends}'" if args.backends else ""
            print(f"differs: python {sys.argv[0]} --seed {args.seed} --round {number}{again}")
            sys.exit(1)
        number += 1
        now = time.monotonic()
        over = args.round is not None or now - start >= 60 * args.minutes
        if over or now - told >= 30:
            told = now
            print(
                f"{now - start:.0f} s, {number} rounds: "
                + ", ".join(f"{v} {k}" for k, v in sorted(done.items())),
                flush=True,
            )
        if over:
            break
    compiled.cache_clear()  # native objects must be freed before their types
    print("no difference")


if __name__ == "__main__":
    main()
