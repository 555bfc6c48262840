"""Pages of both tiers, salts, ended texts, priorities and events against a plain replay, under random traffic."""

from __future__ import annotations

import random

import pytest

from support.engine.kv_traffic import Traffic


@pytest.mark.parametrize("seed", range(30))
def test_traffic_does_what_the_replay_does(seed: int) -> None:
    traffic = Traffic(random.Random(seed), 2 + seed % 3, partial=seed % 5 != 4, copies=seed % 4 != 3)
    for _ in range(300):
        traffic.step()
        traffic.check()
    while traffic.running:
        traffic.end(traffic.running[0])
        traffic.check()
    traffic.make_moves()
    traffic.check()
