"""Who waits for what: any, one, several; timeouts, drained requests, numbers that there are not."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from support.executor import request, until_final
from weft import InputError
from weft.executor import Executor


def test_nothing_to_await(executor: Executor) -> None:
    assert executor.await_responses(timeout=0) == []
    assert executor.await_responses(timeout=timedelta(milliseconds=5)) == []
    assert executor.await_responses([], timeout=None) == []
    assert executor.get_num_responses_ready() == 0


def test_a_timeout_beyond_all_clocks(executor: Executor) -> None:
    for timeout in (1e15, timedelta.max):
        assert executor.await_responses(executor.enqueue_request(request(1)), timeout)
        executor.enqueue_request(request(1))
        assert executor.await_responses(timeout=timeout)


def test_a_timeout_in_the_first_place(executor: Executor) -> None:
    started = time.perf_counter()
    assert executor.await_responses(timedelta(milliseconds=20)) == []
    assert time.perf_counter() - started >= 0.02
    number = executor.enqueue_request(request(2))
    (response,) = executor.await_responses(timedelta(seconds=30))
    assert response.request_id == number
    with pytest.raises(InputError, match="two timeouts are given"):
        executor.await_responses(timedelta(seconds=1), 1.0)  # type: ignore[call-overload]


@pytest.mark.parametrize("number", [1.5, True, "x"])
def test_what_is_no_number_of_a_request(executor: Executor, number: Any) -> None:
    with pytest.raises(InputError, match=r"whole number that enqueue_request gave .*timeout="):
        executor.await_responses(number, timeout=0)


@pytest.mark.parametrize("number", [0, -1, 10**9, "1", 1.0, True, None, {}])
def test_numbers_of_no_request(executor: Executor, number: Any) -> None:
    with pytest.raises(InputError, match="there is no request"):
        executor.cancel_request(number)
    with pytest.raises(InputError, match="there is no request"):
        executor.await_responses([number], timeout=0)


def test_any_one_and_several(executor: Executor) -> None:
    first, second, third = executor.enqueue_requests([request(n, streaming=True) for n in (3, 4, 5)])
    lists = executor.await_responses([second, first], timeout=60)
    assert [{response.request_id for response in told} for told in lists] == [{second}, {first}]
    told: dict[int, list[int]] = {second: [], first: [], third: []}
    for responses in lists:
        for response in responses:
            told[response.request_id] += response.result.output_token_ids[0]
    while [len(tokens) for tokens in told.values()] != [4, 3, 5]:
        came = executor.await_responses(timeout=60)
        assert came
        for response in came:
            told[response.request_id] += response.result.output_token_ids[0]
    assert executor.get_num_responses_ready() == 0


def test_an_order_of_its_own_for_each(executor: Executor) -> None:
    """Per request, responses come in the order in which they came about, whoever else is served."""
    numbers = executor.enqueue_requests([request(6, streaming=True) for _ in range(12)])
    for number in reversed(numbers):
        responses = until_final(executor, number)
        assert [response.result.decoding_iter for response in responses] == list(range(6))


def test_a_list_waits_for_all_of_it(executor: Executor) -> None:
    short, long = executor.enqueue_requests([request(1), request(80)])
    lists = executor.await_responses([short, long], timeout=60)
    assert [len(told) for told in lists] == [1, 1]
    short, long = executor.enqueue_requests([request(1), request(300)])
    until = time.monotonic() + 60
    while not executor.get_num_responses_ready(short):
        assert time.monotonic() < until
    told, nothing = executor.await_responses([short, long], timeout=0)
    assert len(told) == 1
    assert nothing == []
    until_final(executor, long)


def test_ready_responses_are_counted(executor: Executor) -> None:
    number = executor.enqueue_request(request(4, streaming=True))
    until = time.monotonic() + 60
    while executor.get_num_responses_ready(number) < 4:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert executor.get_num_responses_ready() == 4
    assert len(executor.await_responses(number)) == 4
    assert executor.get_num_responses_ready(number) == 0


def test_a_drained_request_says_so(executor: Executor) -> None:
    number = executor.enqueue_request(request(2))
    until_final(executor, number)
    (response,) = executor.await_responses(number)
    assert response.error_msg == f"ReqId {number} has already been processed and was terminated."
    executor.cancel_request(number)  # is of no effect
    for unknown in (0, -1, 10**9):
        with pytest.raises(InputError, match="no request"):
            executor.await_responses(unknown, timeout=0)
    with pytest.raises(InputError, match="no request"):
        executor.cancel_request(10**9)
    with pytest.raises(InputError, match="twice"):
        executor.await_responses([number, number], timeout=0)
    with pytest.raises(InputError, match="timeout"):
        executor.await_responses(timeout="1")  # type: ignore[call-overload]


def test_many_clients_at_once(executor: Executor) -> None:
    """Each hears of its own request, whole, from threads of its own."""
    expected = {n: until_final(executor, executor.enqueue_request(request(n))) for n in range(1, 9)}
    failures: list[BaseException] = []

    def ask(n: int) -> None:
        try:
            for _ in range(5):
                told = until_final(executor, executor.enqueue_request(request(n)))
                wanted = expected[n][0].result.output_token_ids
                assert [response.result.output_token_ids for response in told] == [wanted]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_whoever_waits_for_what_another_took_hears_of_it(executor: Executor) -> None:
    """Two threads wait for one request: one has the response, the other the message that there are no more."""
    number = executor.enqueue_request(request(60))
    told: list[list[bool]] = []

    def wait() -> None:
        told.append([response.has_error() for response in executor.await_responses(number)])

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert sorted(told) == [[False], [True]]
