"""Attention windows and sinks of a `KvCacheConfig`, and executors that fail at once where a text has no room."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from support.engine.oracle import assert_same, greedy
from support.engine.windowed import windowed_model
from support.executor import PROMPT, answer, request
from weft.config import package_model_path
from weft.errors import InputError
from weft.executor import Executor, KvCacheConfig, RuntimeDefaults

COUNT = 40
FAST = "fail_fast_on_attention_window_too_large"


@pytest.mark.parametrize(("windows", "sinks"), [([4], 0), ([4], 1), ([8, 24], 3), ([512], 4), ([1000, 6], 0)])
def test_layers_attend_within_windows(make: Callable[..., Executor], windows: list[int], sinks: int) -> None:
    """As in a plain loop under the same masks."""
    cache = KvCacheConfig(max_attention_window=windows, sink_token_length=sinks, tokens_per_block=4)
    expected = greedy(windowed_model(package_model_path(), windows, sinks), PROMPT, None, set(), COUNT)
    assert_same(answer(make(kv_cache_config=cache), request(COUNT)), expected, f"{windows}, {sinks}")


def test_windows_matter(make: Callable[..., Executor]) -> None:
    def given(**fields: Any) -> list[int]:
        return answer(make(kv_cache_config=KvCacheConfig(**fields)), request(COUNT))

    answers = [given(), given(max_attention_window=[4]), given(max_attention_window=[4], sink_token_length=1)]
    assert all(one != other for i, one in enumerate(answers) for other in answers[:i])
    defaults = RuntimeDefaults(max_attention_window=[4], sink_token_length=1)
    assert given(runtime_defaults=defaults) == answers[2]


def test_windows_without_room_for_their_sinks_are_refused(make: Callable[..., Executor]) -> None:
    """Once an executor is made of them: a config holds them."""
    cache = KvCacheConfig(max_attention_window=[8, 2], sink_token_length=3)
    with pytest.raises(
        InputError, match="sink_tokens is 3; it must be below the smallest of attention_windows, 2"
    ):
        make(kv_cache_config=cache)


def test_a_cache_without_room_for_a_whole_text_fails_at_once(make: Callable[..., Executor]) -> None:
    """If it is asked for; what the error says is enough is the least that is."""
    cache: dict[str, Any] = {"max_tokens": 256, "tokens_per_block": 16}
    assert len(answer(make(kv_cache_config=KvCacheConfig(**cache)), request(5))) == 5
    with pytest.raises(
        InputError, match="16 blocks of 16 tokens, and a text of max_seq_len, 512, tokens"
    ) as failed:
        make(kv_cache_config=KvCacheConfig(**cache), **{FAST: True})
    told = re.search(r"max_tokens at least (\d+)", str(failed.value))
    assert told is not None
    least = int(told[1])
    enough = make(kv_cache_config=KvCacheConfig(max_tokens=least, tokens_per_block=16), **{FAST: True})
    assert len(answer(enough, request(512 - len(PROMPT)))) == 512 - len(PROMPT)
    with pytest.raises(InputError, match=FAST):
        make(kv_cache_config=KvCacheConfig(max_tokens=least - 16, tokens_per_block=16), **{FAST: True})
    make(**{FAST: True})
