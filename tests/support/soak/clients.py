"""Clients of one executor, several at once: threads that wait for their own requests, one that takes whatever there is,
and tasks of an event loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from support.engine.references import make_guide
from support.soak.checks import Account
from support.soak.pool import Pool
from support.soak.prompts import GUIDES, NAMED
from support.soak.workload import Errand
from weft import CapacityError
from weft.executor import Executor, Response

GIVE_UP_S = 240.0
WINDOW = 10
"""Requests that one client has under way."""


class Client:
    """Sends errands, cancels what is to be cancelled, and keeps the accounts."""

    def __init__(self, executor: Executor, pool: Pool, errands: Sequence[Errand], rng: random.Random) -> None:
        self.accounts: list[Account] = []
        self._executor = executor
        self._pool = pool
        self._left = list(errands)
        self._rng = rng
        self._open: dict[int, Account] = {}
        self._cancels: dict[int, float] = {}
        self._until = time.monotonic() + GIVE_UP_S

    def run_own(self) -> None:
        """Wait for its own requests: for one, for several, or now and then."""
        while self._left or self._open:
            self.send()
            self.cancel()
            ids = self._rng.sample(list(self._open), min(len(self._open), self._rng.randint(1, 3)))
            wait_s = self._rng.choice((0.0, 0.002, 0.02))
            if len(ids) == 1:
                self.take(self._executor.await_responses(ids[0], timeout=wait_s))
            elif ids:
                for responses in self._executor.await_responses(ids, timeout=wait_s):
                    self.take(responses)
            self._check_time()

    def run_any(self) -> None:
        """Take whatever there is of anybody's; there must be no other client."""
        while self._left or self._open:
            self.send()
            self.cancel()
            self.take(self._executor.await_responses(timeout=0.005))
            self._check_time()
        assert self._executor.get_num_responses_ready() == 0

    def send(self) -> None:
        """Send a few more, if there is room."""
        room = min(WINDOW - len(self._open), len(self._left))
        if room <= 0 or self._rng.random() < 0.3:
            return
        errands = self._left[: self._rng.randint(1, min(room, 4))]
        try:
            ids = self._executor.enqueue_requests([errand.request for errand in errands])
        except CapacityError:
            return  # the queue is full
        del self._left[: len(errands)]
        for errand, number in zip(errands, ids, strict=True):
            account = self._open[number] = Account(errand, self._pool, number)
            self.accounts.append(account)
            if errand.fate == "cancelled":
                self._cancels[number] = time.monotonic() + errand.cancel_s

    def cancel(self) -> None:
        """Cancel what is due."""
        now = time.monotonic()
        for number, due in list(self._cancels.items()):
            account = self._open.get(number)
            if account is None:
                del self._cancels[number]
            elif now >= due or account.num_responses >= account.errand.cancel_responses:
                self._executor.cancel_request(number)
                del self._cancels[number]

    def take(self, responses: Sequence[Response]) -> None:
        """Put responses to their accounts."""
        for response in responses:
            account = self._open[response.request_id]
            account.feed(response)
            if account.is_over:
                del self._open[response.request_id]

    def _check_time(self) -> None:
        assert time.monotonic() < self._until, f"nothing comes any more of {list(self._open.values())}"


class AsyncClient(Client):
    """Tasks of one event loop, one for each request under way."""

    def run(self) -> None:
        """Answer all errands."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        room = asyncio.Semaphore(WINDOW)
        async with asyncio.timeout(GIVE_UP_S), asyncio.TaskGroup() as tasks:
            for errand in self._left:
                await room.acquire()
                tasks.create_task(self._serve(errand, room))

    async def _serve(self, errand: Errand, room: asyncio.Semaphore) -> None:
        try:
            account = Account(errand, self._pool, await self._enqueue(errand))
            self.accounts.append(account)
            if errand.fate == "cancelled" and self._rng.random() < 0.5:
                await self._leave(account)
                return
            async for response in self._executor.aresponses(account.request_id):
                account.feed(response)
                if errand.fate == "cancelled" and account.num_responses == errand.cancel_responses:
                    self._executor.cancel_request(account.request_id)
        finally:
            room.release()

    async def _enqueue(self, errand: Errand) -> int:
        while True:
            try:
                return await self._executor.aenqueue(errand.request)
            except CapacityError:
                await asyncio.sleep(0.005)

    async def _leave(self, account: Account) -> None:
        """Go away after a few responses, or some time: the request is cancelled behind it."""
        errand = account.errand
        try:
            async with asyncio.timeout(errand.cancel_s):
                responses = self._executor.aresponses(account.request_id)
                async for response in responses:
                    account.feed(response)
                    if account.num_responses == errand.cancel_responses:
                        break
                await responses.aclose()
        except TimeoutError:
            pass
        account.is_left = not account.is_over


def register(executor: Executor, pool: Pool) -> None:
    """Keep the guides that requests name."""
    for name, number in NAMED.items():
        executor.register_guide(name, make_guide(GUIDES[number]))
    for number, guide in pool.counted.items():
        executor.register_guide(f"counted {number}", guide)


def serve(
    executor: Executor, pool: Pool, errands: Sequence[Errand], seed: int, *, takes_any: bool
) -> list[Account]:
    """The accounts of all errands, by three threads and an event loop; or by one client that takes whatever comes."""
    if takes_any:
        lone = Client(executor, pool, errands, random.Random(seed))
        lone.run_any()
        return lone.accounts
    rngs = [random.Random(seed * 10 + i) for i in range(4)]
    parts = [errands[i::4] for i in range(4)]
    clients = [Client(executor, pool, part, rng) for part, rng in zip(parts[:3], rngs, strict=False)]
    tasks = AsyncClient(executor, pool, parts[3], rngs[3])
    runs: list[Callable[[], None]] = [*(client.run_own for client in clients), tasks.run]
    barrier = threading.Barrier(len(runs))

    def run(client: Callable[[], None]) -> None:
        barrier.wait()
        client()

    with ThreadPoolExecutor(len(runs)) as threads:
        for done in [threads.submit(run, client) for client in runs]:
            done.result()
    return [account for client in (*clients, tasks) for account in client.accounts]
