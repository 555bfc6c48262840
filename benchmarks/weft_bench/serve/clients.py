"""The clients of `weft bench serve`, which determine when requests are sent and responses are taken.

All clients share one thread that takes all responses, like a server's front end. In a closed loop each client sends
its next request after the answer to its last one. In an open loop requests arrive at random times (Poisson
arrivals), regardless of answers. A request that is sent late counts from its scheduled time.

A window opens when the load is steady. In a closed loop that is after as many answers as there are clients. If
answers have a fixed length, first answers are staggered, and the window opens when each client has a first token. In
an open loop it opens a quarter of its length after the first request. The window counts tokens that are taken while
it is open. Then the remaining requests are cancelled, so that windows of several loads can alternate on one
executor.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.errors import RequestError
from weft.executor import Executor, FinishReason, Result, TimingMetrics
from weft_bench.serve.workload import Workload

WARM_SHARE = 0.25
ARRIVALS_SEED = 7


@dataclass(frozen=True)
class Load:
    """A closed loop of `clients`, or an open loop with `rate` arrivals per second. `guided_percent` of the requests
    are guided."""

    clients: int = 0
    rate: float = 0.0
    guided_percent: int = 0

    @property
    def name(self) -> str:
        """The load's name, such as "8 clients" or "2.5 requests/s"."""
        if self.clients:
            return f"{self.clients} client{'s' if self.clients > 1 else ''}"
        return f"{self.rate:g} requests/s"


@dataclass
class Sent:
    """A request in flight. Times are those of `time.perf_counter`. `due` is its scheduled time. `first` and `last`
    are the times of its first and last tokens. `first_tokens` is the number of tokens in its first response.
    `longest_gap` is the longest time between two of its responses."""

    due: float
    max_tokens: int
    first: float = 0.0
    last: float = 0.0
    first_tokens: int = 0
    tokens: int = 0
    longest_gap: float = 0.0


@dataclass
class Window:
    """The tokens that clients took in `seconds`. All times are in seconds.

    `tokens` is their number. `gaps` has an entry for each token after a request's first response: the time since the
    previous response, divided by the number of tokens in the later one. Responses that are taken together count as
    one. The other lists have an entry for each request that was answered in the window:
    - `first_token`: from its scheduled time to its first response, without `compile`
    - `compile`: the wait for its guide
    - `queue`: the wait for a slot, which is a part of `first_token`
    - `user_speed`: tokens per second after the first response
    - `longest_gap`: the longest time between two responses, for requests that have a second one
    - `per_iteration`: tokens per iteration
    """

    seconds: float = 0.0
    tokens: int = 0
    requests: int = 0
    gaps: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    user_speed: list[float] = field(default_factory=list)
    longest_gap: list[float] = field(default_factory=list)
    per_iteration: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all clients."""
        return self.tokens / self.seconds


class Clients:
    """Puts a load on an executor that is otherwise idle."""

    def __init__(self, executor: Executor, workload: Workload) -> None:
        self.executor = executor
        self.workload = workload
        self._numbers = itertools.count()
        self.under_way: dict[int, Sent] = {}

    def window(self, load: Load, seconds: float) -> Window:
        """Measure for `seconds`. Raises `RequestError` if a request fails, or if an answer does not have the fixed
        length."""
        open_window = self._closed if load.clients else self._open
        try:
            return open_window(load, seconds)
        finally:
            self._cancel_all()

    def _closed(self, load: Load, seconds: float) -> Window:
        for client in range(load.clients):
            self.send(load, time.perf_counter(), self._staggered(client, load.clients))
        window, answered, until = Window(), 0, 0.0
        while not until or time.perf_counter() < until:
            ended = self._take(window, None)
            for _ in range(ended):
                self.send(load, time.perf_counter())
            answered += ended
            if not until and (answered >= load.clients or self._has_staggered()):
                window, until = Window(seconds=-time.perf_counter()), time.perf_counter() + seconds
        window.seconds += time.perf_counter()
        return window

    def _open(self, load: Load, seconds: float) -> Window:
        begin = time.perf_counter()
        arrivals = poisson(begin, load.rate)
        opens, due = begin + WARM_SHARE * seconds, next(arrivals)
        window, until = Window(), 0.0
        while not until or time.perf_counter() < until:
            while due <= time.perf_counter():
                self.send(load, due)
                due = next(arrivals)
            if not until and time.perf_counter() >= opens:
                window, until = Window(seconds=-time.perf_counter()), time.perf_counter() + seconds
            self._take(window, min(due, until or opens) - time.perf_counter())
        window.seconds += time.perf_counter()
        return window

    def _staggered(self, client: int, clients: int) -> int | None:
        """Return the length of a client's first answer. It varies, because answers with the same fixed length would
        always end at the same time."""
        tokens = self.workload.fixed_tokens
        return None if tokens is None else max(1, tokens * (client + 1) // clients)

    def _has_staggered(self) -> bool:
        if self.workload.fixed_tokens is None:
            return False
        return all(sent.tokens for sent in self.under_way.values())

    def send(self, load: Load, due: float, max_tokens: int | None = None) -> None:
        request = self.workload.request(next(self._numbers), load.guided_percent, max_tokens)
        self.under_way[self.executor.enqueue_request(request)] = Sent(due, request.max_tokens)

    def _take(self, window: Window, timeout: float | None) -> int:
        """Take all responses. Returns the number of requests that ended."""
        taken: dict[int, list[Result]] = {}
        for response in self.executor.await_responses(timeout=timeout):
            taken.setdefault(response.request_id, []).append(response.result)
        now = time.perf_counter()
        return sum(self.note(window, request_id, results, now) for request_id, results in taken.items())

    def note(self, window: Window, request_id: int, results: list[Result], now: float) -> bool:
        sent, result = self.under_way[request_id], results[-1]
        new = sum(len(each.output_token_ids[0]) for each in results)
        if new and not sent.tokens:
            sent.first, sent.first_tokens = now, new
        elif new:
            window.gaps += [(now - sent.last) / new] * new
            sent.longest_gap = max(sent.longest_gap, now - sent.last)
        if new:
            sent.last = now
        sent.tokens += new
        window.tokens += new
        if not result.is_final:
            return False
        del self.under_way[request_id]
        self._check(sent, result.finish_reasons[0])
        window.requests += 1
        window.per_iteration.append(sent.tokens / (result.decoding_iter + 1))
        assert result.request_perf_metrics is not None
        note_times(window, sent, result.request_perf_metrics.timing_metrics)
        return True

    def _check(self, sent: Sent, reason: FinishReason) -> None:
        if self.workload.fixed_tokens is None:
            return
        if reason is not FinishReason.LENGTH or sent.tokens != sent.max_tokens:
            raise RequestError(
                f"an answer of {sent.tokens} tokens ended with {reason.name}; each should have {sent.max_tokens}, so "
                "that loads can be compared: give a smaller number of fixed tokens"
            )

    def _cancel_all(self) -> None:
        for request_id in self.under_way:
            self.executor.cancel_request(request_id)
        while self.under_way:
            for response in self.executor.await_responses():
                if response.has_error() or response.result.is_final:
                    self.under_way.pop(response.request_id, None)


def note_times(window: Window, sent: Sent, timing: TimingMetrics) -> None:
    """Add an answered request's times to the window."""
    compiled = timing.guide_compile_s
    window.compile.append(compiled)
    window.queue.append((timing.first_scheduled_time - timing.arrival_time).total_seconds() - compiled)
    window.first_token.append(sent.first - sent.due - compiled)
    if sent.tokens > sent.first_tokens:
        window.user_speed.append((sent.tokens - sent.first_tokens) / (sent.last - sent.first))
        window.longest_gap.append(sent.longest_gap)


def poisson(begin: float, rate: float) -> Iterator[float]:
    """Yield arrival times, with `rate` per second on average. Every call yields the same times."""
    rng = random.Random(ARRIVALS_SEED)
    while True:
        begin += rng.expovariate(rate)
        yield begin
