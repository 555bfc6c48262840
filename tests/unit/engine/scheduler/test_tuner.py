"""The batch's limits follow the lengths of recent requests: recommendations by hand, and what comes into force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft import EngineConfig
from weft.engine.scheduler.tuner import BatchTuner, recommended_batch, recommended_tokens
from weft.engine.stats import Limits

CONFIG = EngineConfig(max_batch=2048, max_num_tokens=16384, page_size=16, tuning_window=3)


@pytest.mark.parametrize(
    ("capacity", "batch"),
    [
        (1, 128),
        (143, 128),
        (144, 256),
        (335, 256),
        (336, 512),
        (832, 1024),
        (1280, 1536),
        (1663, 1536),
        (1664, 1664),  # 3 * 512 and 128 more
        (1700, 1700),
        (2048, 2048),
        (2100, 2048),
        (2176, 2176),
    ],
)
def test_recommended_batches(capacity: int, batch: int) -> None:
    assert recommended_batch(capacity) == batch


@pytest.mark.parametrize(
    ("batch", "prompt", "answer", "tokens"),
    [
        (128, 100, 1000, 2048),  # long answers
        (128, 1000, 1000, 4096),
        (128, 3000, 1000, 8192),  # long prompts
        (4096, 1000, 1000, 8192),  # 4096 * 2, a power of two
        (4097, 1000, 1000, 16384),
        (1024, 500, 1000, 2048),  # a ratio of 0.5 is not above it
        (1024, 2000, 1000, 4096),
    ],
)
def test_recommended_tokens(batch: int, prompt: float, answer: float, tokens: int) -> None:
    assert recommended_tokens(batch, prompt, answer) == tokens


def tuned(config: EngineConfig, num_pages: int, requests: list[tuple[int, int]]) -> Limits:
    tuner = BatchTuner(config, num_pages, max_drafts=0)
    assert tuner.limits == Limits(config.max_batch, config.max_num_tokens or 0)
    for prompt, answer in requests:
        tuner.note(prompt, answer)
    return tuner.limits


def test_nothing_changes_where_nothing_is_tuned() -> None:
    assert tuned(CONFIG, 1000, [(10, 10)] * 5) == Limits(2048, 16384)


def test_the_cache_bounds_the_batch() -> None:
    config = replace(CONFIG, tunes_batch=True)
    # 100 and 60 tokens are 10 pages: 2000 pages hold 200 requests.
    assert tuned(config, 2000, [(100, 60)]) == Limits(256, 16384, 256, 0)
    assert tuned(replace(config, max_batch=32), 2000, [(100, 60)]) == Limits(32, 16384, 256, 0)
    # The mean is of the last three; requests without an answer do not count.
    assert tuned(config, 2000, [(9000, 9000), (100, 60), (100, 60), (100, 60), (5, 0)]).max_batch == 256


def test_tokens_are_enough_for_a_full_batch() -> None:
    config = replace(CONFIG, tunes_tokens=True)
    assert tuned(config, 2000, [(1000, 1000)]) == Limits(2048, 4096, 0, 4096)
    assert tuned(replace(config, max_num_tokens=3000), 2000, [(1000, 1000)]).max_num_tokens == 3000
    many = replace(config, max_batch=5000, max_num_tokens=20000)
    assert tuned(many, 2000, [(10, 1000)]) == Limits(5000, 8192, 0, 8192)
