"""The asynchronous twin: an event loop is never blocked, and who leaves cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import pytest

from support.executor import answer, request, until_final
from weft import ExecutorError
from weft.executor import Executor


def test_many_streams_in_one_loop(executor: Executor) -> None:
    expected = {n: answer(executor, request(n)) for n in range(1, 9)}

    async def tell(n: int) -> tuple[int, list[int]]:
        number = await executor.aenqueue(request(n, streaming=True))
        tokens = [t async for r in executor.aresponses(number) for t in r.result.output_token_ids[0]]
        return n, tokens

    async def run() -> dict[int, list[int]]:
        return dict(await asyncio.gather(*(tell(n) for n in range(1, 9))))

    assert asyncio.run(run()) == expected
    assert executor.get_num_responses_ready() == 0


def test_the_loop_goes_on_meanwhile(executor: Executor) -> None:
    async def run() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        number = await executor.aenqueue(request(100))
        async for response in executor.aresponses(number):
            assert response.result.is_final
        ticking.cancel()
        return ticks

    assert asyncio.run(run()) > 10


@pytest.mark.parametrize("how", ["leave", "cancel"])
def test_who_leaves_cancels(executor: Executor, how: str) -> None:
    """And nothing of the request is left for others to find."""

    async def follow(number: int) -> None:
        async with aclosing(executor.aresponses(number)) as responses:
            async for _ in responses:
                if how == "leave":
                    return

    async def run() -> None:
        number = await executor.aenqueue(request(450, streaming=True))
        task = asyncio.create_task(follow(number))
        if how == "cancel":
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.wait([task])

    began = executor.client.engine.runner.num_iterations
    asyncio.run(run())
    until = time.monotonic() + 60
    while executor.client.engine.has_work:
        assert time.monotonic() < until
        time.sleep(0.001)
    assert executor.client.engine.runner.num_iterations - began < 440
    assert executor.await_responses(timeout=0) == []


def test_drained_and_failed(executor: Executor) -> None:
    number = executor.enqueue_request(request(2))
    until_final(executor, number)

    async def messages() -> list[str]:
        return [response.error_msg async for response in executor.aresponses(number)]

    assert asyncio.run(messages()) == [f"ReqId {number} has already been processed and was terminated."]


def test_shutdown_ends_the_stream(make: Callable[..., Executor]) -> None:
    executor = make()

    async def run() -> list[bool]:
        number = await executor.aenqueue(request(450))
        asyncio.get_running_loop().call_later(0.02, executor.shutdown)
        return [response.result.is_final async for response in executor.aresponses(number)]

    assert asyncio.run(run()) == [True]

    async def late() -> None:
        async for _ in executor.aresponses(1):
            pass

    with pytest.raises(ExecutorError):
        asyncio.run(late())
