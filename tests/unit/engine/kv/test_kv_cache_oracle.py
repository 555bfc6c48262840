"""The manager of pages against plain bookkeeping, in examples and in long runs."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings

from support.engine.kv_oracle import TUNES, PagesAreWhatTheyShouldBe, Text
from weft.engine.kv.cache import Retention, RetentionRange

TestPages = PagesAreWhatTheyShouldBe.TestCase
TestPages.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def some_text(draw: random.Random) -> Text:
    tail = draw.choice([(), (), (1,), (0, 1), (1, 1, 0), tuple(draw.choices([0, 1], k=6))])
    return draw.choice(TUNES)[: draw.randint(1, 14)] + tail


def some_retention(draw: random.Random) -> Retention:
    def wish() -> tuple[int, float | None]:
        return draw.choice([0, 35, 100]), draw.choice([None, 0.0, 2.0, 5.0])

    cut = draw.randint(1, 8)
    ranges = (RetentionRange(0, cut, *wish()), RetentionRange(cut, None, *wish()))
    return Retention(ranges[: draw.randint(0, 2)], *wish())


@pytest.mark.parametrize("seed", range(24))
def test_long_runs(seed: int) -> None:
    """The same, for longer than examples are: the cache is full, and pages come and go by all ways."""
    draw = random.Random(seed)
    machine = PagesAreWhatTheyShouldBe()
    machine.start(draw.choice([6, 10, 16, 30]), 2 + seed % 3, seed % 4 != 3, seed % 3 != 2)
    for _ in range(400):
        which = draw.randrange(8)
        match draw.choices(["begin", "read", "end", "wait"], [4, 8, 3, 1])[0]:
            case "begin":
                text = some_text(draw)
                machine.begin(
                    text,
                    draw.randint(0, 4),
                    draw.choice([0, 0, 0, 1, 3]),
                    draw.random() < 0.9,
                    draw.choice([None, some_retention(draw)]),
                    draw.choice([None, draw.randint(1, len(text))]),
                )
            case "wait":
                machine.wait(draw.choice([0.5, 1.0, 3.0]))
            case "read" if machine.running:
                machine.read(which, draw.randint(1, 12), draw.randint(0, 2), draw.random() < 0.8)
            case "end" if machine.running:
                machine.end(which)
        machine.all_is_well()
    machine.teardown()
