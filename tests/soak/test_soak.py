"""Thousands of requests, drawn at random: every one has the tokens that `LLM.generate` gives it alone, whoever else is
served, whenever it came, however it is served; and when all have ended nothing is held.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from soak.clients import Account, register, serve, serve_at_once
from soak.leaks import Held, resident_bytes
from soak.questions import Pool
from soak.server_configs import UTILIZATION, WAYS, Way
from soak.workload import crowd, draw
from support.engine.drafters import BEHIND_GIVEN, DRAFTERS
from weft.executor import Executor, FinishReason, IterationStats
from weft.runtime import cpu

pytestmark = [pytest.mark.slow, pytest.mark.serial]

REQUESTS = 100
"""Of each of WAYS."""
CROWD = 6
"""Requests that start together where pages are few."""


def test_the_soak_is_as_wide_as_it_says() -> None:
    assert REQUESTS * len(WAYS) >= 2000
    assert {way.drafter for way in WAYS.values()} == {"none", *DRAFTERS, *BEHIND_GIVEN}


@pytest.mark.parametrize("name", WAYS)
def test_every_request_has_its_own_answer(pool: Pool, drafters: Path, schedule: None, name: str) -> None:
    way, seed = WAYS[name], list(WAYS).index(name)
    errands = draw(random.Random(seed), pool, REQUESTS, **way.terms)
    held = Held()
    cpu.set_schedule(way.schedule, seed)
    with Executor(pool.checkpoint.path, way.config(drafters), device="cpu") as executor:
        register(executor, pool)
        accounts = serve(executor, pool, errands, seed, takes_any=way.takes_any)
        assert len(accounts) == REQUESTS
        if way.policy is UTILIZATION:
            accounts += serve_at_once(executor, pool, crowd(pool, CROWD))
        held.check_idle(executor)
        for account in accounts:
            account.check()
        check_variety(way, accounts, executor.get_latest_iteration_stats())
        del accounts
    del executor
    held.check_end()


def test_memory_stays_the_same(pool: Pool, drafters: Path) -> None:
    """The same requests again and again: after the first rounds nothing grows. Without graphs, whose number grows with
    the kinds of iterations."""
    way = replace(WAYS["given, forced, n-grams, eager"], policy=UTILIZATION, page_size=8, pages=26)
    errands = draw(random.Random(77), pool, 40, **way.terms)
    resident: list[int] = []
    objects: list[int] = []
    with Executor(pool.checkpoint.path, way.config(drafters), device="cpu") as executor:
        register(executor, pool)
        for seed in range(10):
            serve(executor, pool, errands, seed, takes_any=False)
            executor.get_latest_iteration_stats()
            gc.collect()
            resident.append(resident_bytes())
            objects.append(len(gc.get_objects()))
    assert max(resident) - resident[3] < 8 << 20, f"bytes after each round: {resident}"
    assert max(objects) - max(objects[:4]) < 150, f"objects after each round: {objects}"


def check_variety(way: Way, accounts: list[Account], stats: list[IterationStats]) -> None:
    """It was what the way is for: answers of every kind, full batches, drafts taken, prefixes found, preemptions."""
    reasons = Counter(reason for account in accounts if account.error is None for reason in account.reasons)
    assert set(FinishReason) - set(reasons) <= {FinishReason.NOT_FINISHED}, reasons
    assert reasons[FinishReason.LENGTH] + reasons[FinishReason.END_ID] > REQUESTS / 3
    if way.policy is UTILIZATION:
        batches = [each.inflight_batching_stats for each in stats]
        assert any(each is not None and each.num_paused_requests for each in batches), "nobody was preempted"
    else:
        assert max(each.num_active_requests for each in stats) == stats[0].max_num_active_requests
    kv = stats[-1].kv_cache_stats
    assert kv is not None and (kv.reused_blocks > 0) == way.reuse
    accepted = sum(each.specdec_stats.num_accepted_tokens for each in stats if each.specdec_stats is not None)
    assert (accepted > 0) == (way.drafter != "none")
