"""What requests may hold together before they are answered: sequences, bytes, texts of errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from support.executor import PROMPT, answer, request, until_final
from weft import CapacityError, GuideError, InputError
from weft.client import ModelText
from weft.client import Request as ClientRequest
from weft.client.capacity import check_room, queue_size
from weft.errors import MAX_MESSAGE, DriverError, WeftError, shortened
from weft.executor import (
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    GuidedDecodingParams,
    KvCacheConfig,
    Request,
    SamplingConfig,
)
from weft.executor.guides import Guides
from weft.executor.settings import client_limits
from weft.executor.translate import Translator
from weft.grammar import GuideCompiler, Vocabulary

LONG = 450


def sequences(count: int) -> SamplingConfig:
    return SamplingConfig(num_return_sequences=count)


@pytest.mark.parametrize("count", [9, 10**6, 2**31 - 1])
def test_too_many_sequences_are_an_error_response(make: Callable[..., Executor], count: int) -> None:
    """At once, and with no room taken from others."""
    executor = make(max_return_sequences=8, max_queue_size=8)
    number = executor.enqueue_request(request(2, sampling_config=sequences(count)))
    (response,) = executor.await_responses(number, timeout=60)
    assert f"num_return_sequences is {count}" in response.error_msg
    assert "max_return_sequences is 8" in response.error_msg
    numbers = executor.enqueue_requests([request(2, sampling_config=sequences(8))])
    assert numbers == [number + 1]
    assert len(until_final(executor, numbers[0])) == 8


def test_defaults_are_finite() -> None:
    config = ExecutorConfig()
    assert config.max_queue_size is None and config.queue_size == 16_384
    with pytest.raises(CapacityError, match="max_queue_size, 16384"):
        check_room(client_limits(config), 0, 0, [queue_size(ClientRequest([5]))] * 16_385)


def test_bytes_that_wait_are_bounded(make: Callable[..., Executor]) -> None:
    """All or none is taken; what has ended gives its room back, taken or not."""
    executor = make(max_batch_size=1, max_pending_bytes=60_000, max_unread_bytes=1 << 30)
    blocking = executor.enqueue_request(request(LONG))
    wide = Request(PROMPT, 2, end_id=-1, stop_words=["x" * 1000])
    with pytest.raises(CapacityError, match=r"hold \d+ bytes, \d+ more .* max_pending_bytes, 60000"):
        executor.enqueue_requests([wide] * 4)
    numbers = executor.enqueue_requests([wide] * 2)
    with pytest.raises(CapacityError, match="max_pending_bytes"):
        executor.enqueue_request(wide)
    executor.drop_request(numbers.pop())
    numbers.append(executor.enqueue_request(wide))
    executor.cancel_request(blocking)
    for number in numbers:
        until_final(executor, number)
    assert answer(executor, wide)
    until_final(executor, blocking)
    assert executor.client.responses.pending_bytes == 0


def test_what_ends_without_a_step_leaves_the_queue(make: Callable[..., Executor]) -> None:
    """One that the engine refuses at once makes no step, and waits no more."""
    executor = make(max_queue_size=1, max_batch_size=1, kv_cache_config=KvCacheConfig(max_tokens=64))
    for _ in range(3):
        (response,) = until_final(executor, executor.enqueue_request(request(300)))
        assert "pages" in response.error_msg
    assert len(answer(executor, request(2))) == 2


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "prompt": lambda n: {"input_token_ids": list(range(300, 300 + n))},
    "sequences": lambda n: {"sampling_config": sequences(n // 8)},
    "stop texts": lambda n: {"stop_words": ["x" * (n - 1) + "y"]},
    "stop tokens": lambda n: {"stop_words": [list(range(n))]},
    "bad tokens": lambda n: {"bad_words": [[i] for i in range(n)]},
    "bias": lambda n: {"embedding_bias": torch.zeros(n)},
    "drafts": lambda n: {"external_draft_tokens_config": ExternalDraftTokensConfig(list(range(n)))},
    "guide": lambda n: {
        "guided_decoding_params": GuidedDecodingParams(GuidedDecodingParams.GuideType.REGEX, "x" * n)
    },
}


TRANSLATOR = Translator(
    ExecutorConfig(max_return_sequences=10_000),
    ModelText(1 << 20, (0,)),
    Guides(GuideCompiler(Vocabulary.from_tokens([b"", b"x"], end_ids=[0]))),
)


def held_bytes(value: object) -> int:
    """What a request holds, bytes. (`tracemalloc.stop` may end a process that has native threads.)"""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    inside: list[object] = []
    if is_dataclass(value):
        inside = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        inside = [*value, *value.values()]
    elif isinstance(value, tuple | list):
        inside = [*value]
    return sys.getsizeof(value) + sum(map(held_bytes, inside))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_counted_is_held(kind: str) -> None:
    """Twice as much of anything counts for more, and for at least what the request itself holds of it."""
    made = {}
    for n in (8_000, 16_000):
        one = Request(**{"input_token_ids": [5], "max_tokens": 1, **KINDS[kind](n)})
        made[n] = (held_bytes(one), queue_size(TRANSLATOR.translated(one)).num_bytes)
    if kind != "sequences":  # a number
        assert made[16_000][0] - made[8_000][0] >= 8_000
    counted = made[16_000][1] - made[8_000][1]
    assert counted >= 8_000
    assert counted >= 0.7 * (made[16_000][0] - made[8_000][0])


def test_errors_are_shortened_where_they_are_made() -> None:
    """By every kind of error; both ends of a long text can be read, and how much is missing."""
    long = "a" * 3000 + "b" * 1_000_000 + "c" * 1000
    for kind in (InputError, GuideError, CapacityError, DriverError, WeftError):
        text = str(kind(long))
        assert len(text) < MAX_MESSAGE + 100
        assert text.startswith("a" * 3000) and text.endswith("c" * 1000)
        assert "1000000 letters are left out" in text
    assert len(str(InputError("\x1b" * 1_000_000))) < MAX_MESSAGE + 100
    assert shortened("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert str(InputError("short")) == "short" and InputError("a", 3).args == ("a", 3)


def test_an_error_response_is_short(make: Callable[..., Executor]) -> None:
    executor = make()
    named = request(1, logits_post_processor_name="n" * 100_000)
    (response,) = until_final(executor, executor.enqueue_request(named))
    assert len(response.error_msg) < MAX_MESSAGE + 100 and "letters are left out" in response.error_msg
