"""How requests and executors end: cancelled, out of time, refused by a full queue, shut down, failed, dropped."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from support.executor import GUIDED, PROMPT, answer, request, until_final
from weft import CapacityError, ExecutorError, Guide
from weft.executor import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingParams,
    KvCacheConfig,
    OutputConfig,
    SamplingConfig,
    SchedulerConfig,
)
from weft.grammar.auto import AutoBackend

LONG = 450
METRICS = OutputConfig(return_perf_metrics=True)


def test_cancelling_ends_every_sequence(executor: Executor) -> None:
    """With what there is, and no error; siblings too."""
    config = SamplingConfig(num_return_sequences=3, temperature=1.0)
    number = executor.enqueue_request(request(LONG, streaming=True, sampling_config=config))
    taken = executor.await_responses(number, timeout=60)
    executor.cancel_request(number)
    taken += until_final(executor, number)
    finals = [response.result for response in taken if response.result.is_sequence_final]
    assert {result.sequence_index for result in finals} == {0, 1, 2}
    assert {result.finish_reasons[0] for result in finals} == {FinishReason.CANCELLED}
    assert [result.is_final for result in finals] == [False, False, True]
    tokens = sum(len(response.result.output_token_ids[0]) for response in taken)
    assert 0 < tokens < 3 * LONG


def test_cancelling_what_waits(make: Callable[..., Executor]) -> None:
    executor = make(max_batch_size=1)
    running, waiting = executor.enqueue_requests([request(LONG), request(LONG)])
    executor.cancel_request(waiting)
    (response,) = until_final(executor, waiting)
    assert response.result.finish_reasons == [FinishReason.CANCELLED]
    assert response.result.output_token_ids == [PROMPT]
    executor.cancel_request(running)
    assert until_final(executor, running)[-1].result.finish_reasons == [FinishReason.CANCELLED]


@pytest.mark.parametrize("allotted_ms", [0, 1, 40, 60_000])
def test_allotted_time(executor: Executor, allotted_ms: float) -> None:
    """Over means TIMED_OUT with what there is, at most a turn late; a long time is of no account."""
    began = time.perf_counter()
    max_tokens = LONG if allotted_ms < 1000 else 5
    number = executor.enqueue_request(request(max_tokens, allotted_time_ms=allotted_ms))
    (response,) = until_final(executor, number)
    seconds = time.perf_counter() - began
    if allotted_ms > 1000:
        assert response.result.finish_reasons == [FinishReason.LENGTH]
        return
    assert response.result.finish_reasons == [FinishReason.TIMED_OUT]
    assert seconds >= allotted_ms / 1000
    if not allotted_ms:
        assert response.result.output_token_ids == [PROMPT]


def test_time_runs_out_while_a_guide_compiles(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine sleeps, with nothing to do, and wakes for the deadline."""
    gate, compile_now = threading.Event(), AutoBackend.compile

    def slowly(self: AutoBackend, guide: Guide) -> Any:
        gate.wait(60)
        return compile_now(self, guide)

    monkeypatch.setattr(AutoBackend, "compile", slowly)
    params = GuidedDecodingParams(GuidedDecodingParams.GuideType.REGEX, "[0-9]{17}")
    late, early = executor.enqueue_requests(
        [
            request(5, end_id=None, guided_decoding_params=params, allotted_time_ms=allotted)
            for allotted in (30, 1e300)
        ]
    )
    (response,) = until_final(executor, late)
    assert response.result.finish_reasons == [FinishReason.TIMED_OUT]
    time.sleep(0.05)  # the engine sleeps until a time beyond all clocks
    executor.cancel_request(early)
    (response,) = until_final(executor, early)
    assert response.result.finish_reasons == [FinishReason.CANCELLED]
    cancelled, served = executor.enqueue_requests(
        [request(5, end_id=None, guided_decoding_params=params, output_config=METRICS) for _ in range(2)]
    )
    executor.cancel_request(cancelled)
    (response,) = until_final(executor, cancelled)
    assert response.result.finish_reasons == [FinishReason.CANCELLED]
    assert answer(executor, request(3))  # who is not guided does not wait
    time.sleep(0.05)
    gate.set()
    (response,) = until_final(executor, served)
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    times = metrics.timing_metrics
    assert times.guide_compile_s >= 0.05
    assert times.guide_ready_time is not None and times.first_scheduled_time is not None
    assert times.arrival_time < times.guide_ready_time < times.first_scheduled_time
    assert times.time_to_first_token_s is not None and times.time_to_first_token_s > times.guide_compile_s


def test_who_is_preempted_and_waits_too_long_ends(make: Callable[..., Executor]) -> None:
    """With what there is; who is never preempted may take its time."""
    executor = make(
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=160),
        max_seq_len=144,
        max_seq_idle_microseconds=2000,
    )
    idle = executor.enqueue_request(request(100, priority=0.0, streaming=True))
    taken = executor.await_responses(idle, timeout=60)
    served = executor.enqueue_request(request(100, priority=1.0))
    taken += until_final(executor, idle)
    assert taken[-1].result.finish_reasons == [FinishReason.TIMED_OUT]
    assert 0 < sum(len(response.result.output_token_ids[0]) for response in taken) < 100
    assert until_final(executor, served)[-1].result.finish_reasons == [FinishReason.LENGTH]


def test_a_full_queue_raises(make: Callable[..., Executor]) -> None:
    """Sequences count; what runs does not; all or none is taken."""
    executor = make(max_batch_size=1, max_queue_size=3)
    number = executor.enqueue_request(request(LONG))
    until = time.monotonic() + 60
    while not executor.get_latest_iteration_stats():
        assert time.monotonic() < until
    many = request(2, sampling_config=SamplingConfig(num_return_sequences=4))
    with pytest.raises(CapacityError, match="the queue is full: 0 sequences wait, 4 more"):
        executor.enqueue_request(many)
    with pytest.raises(CapacityError):
        executor.enqueue_requests([request(2) for _ in range(4)])
    numbers = executor.enqueue_requests([request(2) for _ in range(3)])
    with pytest.raises(CapacityError, match="3 sequences wait"):
        executor.enqueue_request(request(2))
    executor.cancel_request(number)
    for number in numbers:
        until_final(executor, number)
    assert answer(executor, request(2))


def test_many_clients_at_a_full_queue(make: Callable[..., Executor]) -> None:
    """Of those who find the last place free at the same time, one gets it."""
    executor = make(max_batch_size=1, max_queue_size=4)
    executor.enqueue_request(request(LONG))
    until = time.monotonic() + 60
    while not executor.get_latest_iteration_stats():
        assert time.monotonic() < until
    taken: list[int] = []
    together = threading.Barrier(16)

    def enqueue() -> None:
        together.wait()
        with contextlib.suppress(CapacityError):
            taken.append(executor.enqueue_request(request(2)))

    clients = [threading.Thread(target=enqueue) for _ in range(16)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(taken) == 4


def test_shutdown_wakes_and_ends(make: Callable[..., Executor]) -> None:
    """A waiter has what there is of its request; one without a request hears that there is nothing more."""
    executor = make()
    number = executor.enqueue_request(request(LONG))
    told: list[Any] = []

    begun = threading.Barrier(3)

    def wait(awaited: int | None) -> None:
        begun.wait(60)
        try:
            told.append(executor.await_responses(awaited))
        except ExecutorError as error:
            told.append(error)

    threads = [threading.Thread(target=wait, args=(awaited,)) for awaited in (number, None)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    time.sleep(0.02)  # for both to be inside the call
    executor.shutdown()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    taken = [response for one in told if isinstance(one, list) for response in one]
    # Either may take the last response; that it was taken is then what the other hears, or that there is no more.
    reasons = [response.result.finish_reasons for response in taken if not response.has_error()]
    assert reasons == [[FinishReason.CANCELLED]]
    for call in (
        lambda: executor.enqueue_request(request(2)),
        lambda: executor.await_responses(timeout=0),
        lambda: executor.await_responses(number),
        lambda: executor.get_num_responses_ready(),
        lambda: executor.cancel_request(number),
        lambda: executor.get_latest_iteration_stats(),
        lambda: executor.get_latest_request_stats(),
        lambda: executor.get_latest_debug_tensors(),
        lambda: executor.is_participant(),
        lambda: executor.register_guide("digits", Guide.regex("[0-9]+")),
    ):
        with pytest.raises(ExecutorError, match="shut down"):
            call()
    assert not executor.can_enqueue_requests()
    executor.shutdown()


def test_a_failing_forward_ends_what_it_touched(
    make: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits already hears of it; the executor goes on serving."""
    executor = make(graphs="none")
    model = executor.client.engine.parts.model
    original, calls = model.logits, 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("planted in the model")
        return original(*args, **options)

    expected = answer(executor, request(5))
    monkeypatch.setattr(model, "logits", failing)
    number = executor.enqueue_request(request(LONG))
    (response,) = until_final(executor, number)
    assert "planted in the model" in response.error_msg
    assert answer(executor, request(5)) == expected


def test_a_failing_loop_is_told_to_everyone(
    make: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests under way, requests that wait, waiters and every later call; nobody hangs."""
    executor = make(max_batch_size=1)
    engine = executor.client.engine
    step, turns = engine.step, 0

    def failing(**terms: Any) -> Any:
        nonlocal turns
        turns += 1
        if turns == 4:
            raise RuntimeError("planted in the loop")
        return step(**terms)

    monkeypatch.setattr(engine, "step", failing)
    numbers = executor.enqueue_requests([request(LONG) for _ in range(3)])
    for number in numbers:
        (response,) = executor.await_responses(number, timeout=60)
        assert "planted in the loop" in response.error_msg
    for call in (
        lambda: executor.enqueue_request(request(2)),
        lambda: executor.await_responses(),
        lambda: executor.get_latest_iteration_stats(),
        lambda: executor.client.call(lambda: None),
    ):
        with pytest.raises(ExecutorError, match="planted in the loop") as raised:
            call()
        assert isinstance(raised.value.__cause__, RuntimeError)
    executor.shutdown()


def test_a_dropped_executor_ends_its_thread() -> None:
    before = set(threading.enumerate())
    executor = Executor(None, ExecutorConfig(guided_decoding_config=GUIDED, max_batch_size=2), device="cpu")
    executor.enqueue_request(request(LONG))
    started = set(threading.enumerate()) - before
    assert any(thread.name == "weft-engine" for thread in started)
    dropped = weakref.ref(executor)
    del executor
    gc.collect()
    assert dropped() is None
    for thread in started:
        thread.join(timeout=60)
        assert not thread.is_alive()


PROGRAM = """
from weft.executor import Executor, ExecutorConfig, Request
executor = Executor(None, ExecutorConfig(max_batch_size=2), device="cpu")
executor.enqueue_requests([Request([5, 6, 7], 400, end_id=-1) for _ in range(4)])
{then}
print("over")
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["executor.await_responses()", "raise SystemExit(0)"])
def test_a_program_may_end_at_any_time(then: str) -> None:
    """With requests under way, and nothing shut down."""
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", PROGRAM.format(then=then)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == ("" if "Exit" in then else "over\n")


def test_commands_in_order_and_calls_between_turns(executor: Executor) -> None:
    client = executor.client
    assert client.call(lambda: threading.current_thread().name) == "weft-engine"
    assert client.call(lambda: client.call(lambda: 5)) == 5
    with pytest.raises(ZeroDivisionError):
        client.call(lambda: 1 // 0)
    assert answer(executor, request(2))
