"""Clients of one executor, several at once: threads that wait for their own requests, one that takes whatever there is,
and tasks of an event loop.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from soak.questions import GUIDES, NAMED, Pool, finish_reason
from soak.workload import Errand
from support.engine.references import make_guide
from weft import CapacityError
from weft.core import Output, TokenLogprob
from weft.executor import Executor, FinishReason, Response, Result

# -- What came of a request: its responses, by the rules that they follow, against the reference's answer

NOT_FINISHED = FinishReason.NOT_FINISHED


class Account:
    """Takes the responses of one request in their order, and says at the end whether they are right."""

    def __init__(self, errand: Errand, pool: Pool, request_id: int) -> None:
        self.errand = errand
        self.request_id = request_id
        self.num_responses = 0
        self.is_over = False
        self.is_left = False  # whoever asked went away
        self.error: str | None = None
        self.tokens: list[list[int]] = [[] for _ in range(errand.num_sequences)]
        self.log_probs: list[list[float]] = [[] for _ in self.tokens]
        self.reasons = [NOT_FINISHED for _ in self.tokens]
        self._pool = pool

    def __repr__(self) -> str:
        case = self.errand.case
        return f"request {self.request_id} ({self.errand.fate}) of case {case.number}"

    def feed(self, response: Response) -> None:
        """Take the next response."""
        request, self.num_responses = self.errand.request, self.num_responses + 1
        assert not self.is_over, f"{self}: a response behind the last one: {response}"
        assert (response.request_id, response.client_id) == (self.request_id, request.client_id)
        if response.has_error():
            self.error, self.is_over = response.error_msg, True
            return
        result = response.result
        index, wanted = result.sequence_index, request.output_config
        (tokens,), (reason,) = result.output_token_ids, result.finish_reasons
        assert self.reasons[index] is NOT_FINISHED, f"{self}: sequence {index} goes on after its end"
        assert result.is_sequence_final == (reason is not NOT_FINISHED)
        assert request.streaming or result.is_sequence_final
        if not (request.streaming or wanted.exclude_input_from_output):
            prompt = list(request.input_token_ids)
            assert tokens[: len(prompt)] == prompt
            tokens = tokens[len(prompt) :]
        is_delta = request.streaming and not request.return_all_generated_tokens
        num_before = len(self.tokens[index]) if is_delta else 0
        if not is_delta:
            assert tokens[: len(self.tokens[index])] == self.tokens[index]
        self.tokens[index] = [*(self.tokens[index] if is_delta else []), *tokens]
        assert (result.log_probs is not None) == wanted.return_log_probs
        if result.log_probs is not None:
            (log_probs,) = result.log_probs
            self.log_probs[index] = log_probs
            assert len(log_probs) == len(self.tokens[index])
            if reason is not FinishReason.END_ID:  # the end token counts, too
                assert result.cum_log_probs == pytest.approx([sum(log_probs)])
        assert (result.top_log_probs is not None) == bool(wanted.top_log_probs)
        self._check_logits(result, len(self.tokens[index]) - num_before)
        assert (result.request_perf_metrics is not None) == wanted.return_perf_metrics
        self.reasons[index] = reason
        self.is_over = result.is_final
        assert result.is_final == all(reason is not NOT_FINISHED for reason in self.reasons)

    def _check_logits(self, result: Result, num_new: int) -> None:
        request, size = self.errand.request, self._pool.vocab_size
        wanted = request.output_config
        logits = result.generation_logits
        shape = (num_new, 1, size) if request.streaming else (1, num_new, size)
        assert logits is None or (wanted.return_generation_logits and logits.shape == shape)
        assert logits is not None or not (wanted.return_generation_logits and num_new)
        if result.context_logits is not None:
            assert wanted.return_context_logits
            assert result.context_logits.shape == (len(request.input_token_ids), size)

    def check(self) -> None:
        """It has come to the end that it should have come to, with the reference's tokens."""
        errand, answers = self.errand, self._answers()
        assert self.is_over or self.is_left, f"{self} has not ended"
        if errand.fate == "invalid":
            assert self.error is not None and re.search(errand.error, self.error), f"{self}: {self.error}"
            return
        is_same = all(
            self._pool.compare(errand.case, index, tokens, f"{self}, sequence {index}")
            for index, tokens in enumerate(self.tokens)
        )
        if not is_same or self.is_left:
            return
        may_fail = any(answer.error is not None for answer in answers)
        assert self.error is None or may_fail, f"{self}: {self.error}"
        if self.error is not None:
            return
        early = {"cancelled": FinishReason.CANCELLED, "timed out": FinishReason.TIMED_OUT}.get(errand.fate)
        for reason, tokens, logs, answer in zip(
            self.reasons, self.tokens, self.log_probs, answers, strict=True
        ):
            assert answer.logprobs is not None
            self._check_log_probs(logs, answer.logprobs)
            if reason is not early:
                assert answer.error is None, f"{self} is answered; the reference has {answer.error}"
                assert (reason, tokens) == self._expected(answer), str(self)

    def _expected(self, answer: Output) -> tuple[FinishReason, list[int]]:
        """How an executor gives an answer out: without its end token, and no further than the drafts that the request
        brought along are right, and one token more."""
        reason, tokens = finish_reason(answer), answer.token_ids
        given = self.errand.request.external_draft_tokens_config
        if given is not None:
            drafts = given.tokens
            right = next(
                (i for i, pair in enumerate(zip(tokens, drafts, strict=False)) if pair[0] != pair[1]), None
            )
            right = min(len(tokens), len(drafts)) if right is None else right
            if right + 1 < len(tokens):
                return FinishReason.LENGTH, tokens[: right + 1]
        return reason, tokens[:-1] if reason is FinishReason.END_ID else tokens

    def _answers(self) -> list[Output]:
        return [self._pool.answer(self.errand.case, index) for index in range(self.errand.num_sequences)]

    def _check_log_probs(self, got: list[float], expected: list[TokenLogprob]) -> None:
        for value, entry in zip(got, expected, strict=False):
            assert value == pytest.approx(entry.logprob, abs=2e-3), f"{self}: {got} instead of {expected}"


# -- what becomes of them

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

    def run_at_once(self) -> None:
        """Send everything in one call, so that it starts in one iteration, and wait for it."""
        self._send(list(self._left))
        self.run_any()

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
        self._send(self._left[: self._rng.randint(1, min(room, 4))])

    def _send(self, errands: Sequence[Errand]) -> None:
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


def serve_at_once(executor: Executor, pool: Pool, errands: Sequence[Errand]) -> list[Account]:
    """The accounts of all errands, which start together."""
    client = Client(executor, pool, errands, random.Random(0))
    client.run_at_once()
    return client.accounts


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
