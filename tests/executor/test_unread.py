"""Responses that nobody reads: merged, forgotten in the order of their ends, or dropped by a call."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from support.executor import GUIDED, request, until_final
from weft import ExecutorError, InputError
from weft.client import ClientLimits, ResponseDelta
from weft.client import Request as ClientRequest
from weft.client import Response as ClientResponse
from weft.client.response_queue import ResponseQueue
from weft.client.unread import merged
from weft.engine.sequence import Sequence
from weft.executor import Executor, GuidedDecodingParams, OutputConfig, Response, SamplingConfig
from weft.executor.types import FinishReason

LONG = 400
MARKED = 0.123
WATCH = OutputConfig(return_log_probs=True, top_log_probs=2)


def at_rest(executor: Executor) -> None:
    """Until everything has ended and was published."""
    until = time.monotonic() + 60
    while not executor.client.is_idle:
        assert time.monotonic() < until
        time.sleep(0.005)


def texts(responses: list[Response]) -> dict[int, list[int]]:
    """The tokens of each sequence, of responses that hold what was added."""
    found: dict[int, list[int]] = {}
    for response in responses:
        found.setdefault(response.result.sequence_index, []).extend(response.result.output_token_ids[0])
    return found


@pytest.mark.parametrize("fields", [{}, {"return_all_generated_tokens": True}, {"output_config": WATCH}])
def test_unread_responses_are_merged_and_nothing_is_lost(
    make: Callable[..., Executor], fields: dict[str, Any]
) -> None:
    """A reader who comes late has fewer responses, with all tokens, in their order, and one end of each sequence."""
    sampling = SamplingConfig(num_return_sequences=2, temperature=1.0, seed=3)
    one = request(60, streaming=True, sampling_config=sampling, **fields)
    free = make()
    expected = until_final(free, free.enqueue_request(one))
    assert len(expected) == 120
    executor = make(max_unread_responses=8)
    number = executor.enqueue_request(one)
    at_rest(executor)
    assert executor.get_num_responses_ready(number) <= 8
    came = executor.await_responses(number)
    assert len(came) <= 8 and came[-1].result.is_final
    assert [response.result.is_final for response in came].count(True) == 1
    ends = [response.result for response in came if response.result.is_sequence_final]
    assert {result.sequence_index for result in ends} == {0, 1}
    if "return_all_generated_tokens" in fields:
        last = {r.result.sequence_index: r.result.output_token_ids for r in expected}
        assert {result.sequence_index: result.output_token_ids for result in ends} == last
        return
    assert texts(came) == texts(expected)
    if "output_config" in fields:
        for index in (0, 1):
            logs = [
                [r.result.log_probs[0] for r in of if r.result.sequence_index == index][-1]
                for of in (came, expected)
            ]
            assert logs[0] == pytest.approx(logs[1])


def test_whoever_reads_has_a_response_for_each_iteration(make: Callable[..., Executor]) -> None:
    """However few may be left unread: what was taken is not counted."""
    executor = make(max_unread_responses=30)
    number = executor.enqueue_request(request(LONG, streaming=True))
    assert len(until_final(executor, number)) >= LONG // 30


def test_merging_keeps_the_order_of_the_last_events() -> None:
    first, second = cast(Sequence, "first"), cast(Sequence, "second")
    events = [
        ResponseDelta(first, 0, 1),
        ResponseDelta(second, 0, 2),
        ResponseDelta(first, 1, 4, 3),
        ResponseDelta(second, 2, 5, 3, True),
    ]
    assert merged([*events, ResponseDelta(first, 4, 6, 4, True, True)]) == [
        ResponseDelta(second, 0, 5, 3, True),
        ResponseDelta(first, 0, 6, 4, True, True),
    ]


def ended(responses: ResponseQueue, num_bytes: int) -> ClientResponse:
    """A request that has ended, with an error of few letters."""
    handle = responses.open(ClientRequest([5]), num_bytes)
    responses.refuse(handle, InputError("planted"))
    return handle


def test_the_first_that_ended_are_forgotten_first() -> None:
    """But not the last one, however much it holds, nor one that somebody waits for; their bytes are accounted for."""
    responses = ResponseQueue(ClientLimits(max_unread_bytes=10_000))
    handles = [ended(responses, 3000) for _ in range(3)]
    assert not any(responses.was_forgotten(handle.id) for handle in handles)
    handles.append(ended(responses, 3000))
    assert [responses.was_forgotten(handle.id) for handle in handles] == [True, False, False, False]
    handles[1].listeners.append(lambda _: None)
    handles.append(ended(responses, 3000))
    assert [responses.was_forgotten(handle.id) for handle in handles] == [True, False, True, False, False]
    handles.append(ended(responses, 50_000))
    assert [responses.was_forgotten(handle.id) for handle in handles] == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert responses.num_forgotten == 4
    assert responses.pending_bytes == 0
    for handle in (handles[1], handles[5]):
        assert responses.take([handle.id], 0)[0][1][0].error == "planted"
    assert responses.is_empty and responses.num_unread_bytes == 0


def test_requests_that_are_awaited_do_not_make_others_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that ends looks past a few of them, not past all."""
    responses, looks = ResponseQueue(ClientLimits(max_unread_bytes=1)), 0

    def looked(handle: ClientResponse) -> bool:
        nonlocal looks
        looks += 1
        return True

    monkeypatch.setattr(ClientResponse, "is_awaited", property(looked))
    for _ in range(600):
        ended(responses, 0)
    assert responses.num_open == 600 and 0 < looks <= 600 * 64


def test_a_request_that_was_forgotten_is_told_from_one_that_was_taken(make: Callable[..., Executor]) -> None:
    executor = make(max_unread_bytes=40_000)
    numbers = [executor.enqueue_request(request(2)) for _ in range(40)]
    at_rest(executor)
    (gone,) = executor.await_responses(numbers[0])
    assert "was forgotten" in gone.error_msg and "max_unread_bytes" in gone.error_msg
    (kept,) = executor.await_responses(numbers[-1])
    assert not kept.has_error()
    (taken,) = executor.await_responses(numbers[-1])
    assert "already been processed" in taken.error_msg

    async def follow() -> list[Response]:
        return [response async for response in executor.aresponses(numbers[1])]

    (gone,) = asyncio.run(follow())
    assert "was forgotten" in gone.error_msg
    assert 0 < executor.client.responses.num_open < 20
    assert executor.get_latest_iteration_stats()[-1].num_forgotten_requests > 20


def test_whoever_waits_for_many_has_all(make: Callable[..., Executor]) -> None:
    """However much they hold together: one call waits for all of them."""
    executor = make(max_unread_bytes=40_000)
    numbers = executor.enqueue_requests([request(2) for _ in range(60)])
    for (response,) in executor.await_responses(numbers, timeout=60):
        assert not response.has_error()


@pytest.mark.parametrize("streaming", [False, True])
def test_dropping_ends_a_request_and_lets_go_of_it(make: Callable[..., Executor], streaming: bool) -> None:
    """Under way, waiting, or ended with responses that nobody took."""
    executor = make(max_batch_size=1)
    over = executor.enqueue_request(request(3, streaming=streaming, priority=MARKED))
    at_rest(executor)
    marked = request(LONG, streaming=streaming, priority=MARKED)
    running, waiting = executor.enqueue_requests([marked, marked])
    for number in (over, running, waiting):
        executor.drop_request(number)
        executor.drop_request(number)  # a second time it is gone
        assert executor.get_num_responses_ready(number) == 0
        (response,) = executor.await_responses(number)
        assert "terminated" in response.error_msg
    at_rest(executor)
    assert executor.client.responses.is_empty and executor.client.responses.pending_bytes == 0
    until = time.monotonic() + 60
    while any(type(one) is Sequence and one.request.priority == MARKED for one in gc.get_objects()):
        gc.collect()
        assert time.monotonic() < until
    with pytest.raises(InputError, match="there is no request"):
        executor.drop_request(waiting + 1)
    executor.shutdown()
    with pytest.raises(ExecutorError):
        executor.drop_request(over)


def test_dropping_wakes_who_waits(make: Callable[..., Executor]) -> None:
    executor = make(max_batch_size=1)
    blocking, waiting = executor.enqueue_requests([request(LONG), request(LONG)])
    told: list[Response] = []
    waiter = threading.Thread(target=lambda: told.extend(executor.await_responses(waiting)))
    waiter.start()

    async def drop() -> list[Response]:
        async def follow() -> list[Response]:
            return [response async for response in executor.aresponses(blocking)]

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.02)
        await executor.adrop(waiting)
        await executor.adrop(blocking)
        return await asyncio.wait_for(task, 60)

    assert asyncio.run(drop()) == []
    waiter.join(60)
    assert not waiter.is_alive()
    assert [response.has_error() for response in told] == [True]


def test_an_answer_that_waits_to_be_read_holds_no_more_than_itself(make: Callable[..., Executor]) -> None:
    """Neither the compiled guide, nor the matcher, nor the frames of an error."""
    executor = make(guided_decoding_config=GUIDED)
    kind = GuidedDecodingParams.GuideType
    good, bad = executor.enqueue_requests(
        [
            request(3, end_id=None, guided_decoding_params=GuidedDecodingParams(kind.REGEX, "[0-9]{4}")),
            request(3, end_id=None, guided_decoding_params=GuidedDecodingParams(kind.JSON_SCHEMA, "{")),
        ]
    )
    at_rest(executor)
    while executor.get_num_responses_ready() < 2:
        time.sleep(0.005)
    for number in (good, bad):
        handle = executor.client.responses.find(number)
        assert handle is not None
        (one,) = handle.sequences
        assert handle.request.guide is None
        own = one.guide
        assert own is None or own.compiled is own.matcher is None
        error = one.output.error
        assert error is None or (error.__traceback__, error.__cause__, error.__context__) == (None,) * 3
    (response,) = executor.await_responses(good)
    assert response.result.finish_reasons == [FinishReason.LENGTH]
    (response,) = executor.await_responses(bad)
    assert response.has_error() and response.error_msg


def test_leaving_a_request_early_leaves_nothing(make: Callable[..., Executor]) -> None:
    """Also one that has ended meanwhile."""
    executor = make()

    async def leave() -> None:
        number = await executor.aenqueue(request(20, streaming=True))
        responses = executor.aresponses(number)
        async for _ in responses:
            await asyncio.to_thread(at_rest, executor)
            break
        await cast(Any, responses).aclose()

    asyncio.run(leave())
    assert executor.client.responses.is_empty and executor.client.responses.num_unread_bytes == 0


def test_streams_that_nobody_reads_hold_little(make: Callable[..., Executor]) -> None:
    """Events are counted, not only requests."""
    executor = make(max_unread_responses=4, max_unread_bytes=100_000)
    for _ in range(60):
        executor.enqueue_request(request(24, streaming=True))
    at_rest(executor)
    responses = executor.client.responses
    assert responses.num_ready() <= 4 * responses.num_open
    assert 0 < responses.num_unread_bytes <= 100_000
    left = [handle.num_bytes for handle in map(responses.find, range(1, 61)) if handle is not None]
    assert responses.num_unread_bytes == sum(left)
