"""The clients of `weft bench serve`: what they send when, and when they take what comes back.

All clients are one thread that takes the responses of all, as a server's front does. In a closed loop there are so many
clients, and each sends its next request when its last is answered. In an open loop requests come at random moments
(Poisson arrivals), whatever is answered; one that is sent late counts from the moment at which it was due.

A window opens when the load is steady: in a closed loop when as many requests were answered as there are clients (or,
where answers have a fixed length, when each client has a first token: the first answer of each has another length); in
an open loop a quarter of the window's length after the first one. It holds what was taken while it was open; then
what is still under way is cancelled, so that windows of several loads can take turns on one executor.
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
    """`clients` in a closed loop, or `rate` arrivals a second in an open one; `guided_percent` of requests guided."""

    clients: int = 0
    rate: float = 0.0
    guided_percent: int = 0

    @property
    def name(self) -> str:
        """As in "8 clients" or "2.5 requests/s"."""
        if self.clients:
            return f"{self.clients} client{'s' if self.clients > 1 else ''}"
        return f"{self.rate:g} requests/s"


@dataclass
class Sent:
    """A request under way. `due`: when it was to be sent; `first` and `last`: when its first and its last tokens were
    taken, `first_tokens` of them with the first response. `time.perf_counter`'s seconds."""

    due: float
    max_tokens: int
    first: float = 0.0
    last: float = 0.0
    first_tokens: int = 0
    tokens: int = 0


@dataclass
class Window:
    """What clients took in `seconds`. All times in seconds.

    `tokens` came, and `gaps` has an entry for each that was not of a request's first response: the time between the
    response it came with and the request's response before, divided by the tokens of the later one (responses that
    are taken together are one). The other lists have an entry for each request that was answered in the window:
    `first_token`, from the moment it was due to its first response, without `compile`, its wait for its guide;
    `queue`, the wait for a slot, which is a part of that; `user_speed`, tokens a second after the first response;
    `per_iteration`, tokens in an iteration.
    """

    seconds: float = 0.0
    tokens: int = 0
    requests: int = 0
    gaps: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    compile: list[float] = field(default_factory=list)
    user_speed: list[float] = field(default_factory=list)
    per_iteration: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second, of all clients."""
        return self.tokens / self.seconds


class Clients:
    """Puts a load on an executor that nothing else uses."""

    def __init__(self, executor: Executor, workload: Workload) -> None:
        self.executor = executor
        self.workload = workload
        self._numbers = itertools.count()
        self.under_way: dict[int, Sent] = {}

    def window(self, load: Load, seconds: float) -> Window:
        """Measure for `seconds`. Raises `RequestError` for a request that failed, or is not as long as it must be."""
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
        """Answers of a fixed length would all end at once, for ever; the first of each client has another length."""
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
        """Note what there is; how many requests have ended with it."""
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
    """What an answered request adds to the window's times."""
    compiled = timing.guide_compile_s
    window.compile.append(compiled)
    window.queue.append((timing.first_scheduled_time - timing.arrival_time).total_seconds() - compiled)
    window.first_token.append(sent.first - sent.due - compiled)
    if sent.tokens > sent.first_tokens:
        window.user_speed.append((sent.tokens - sent.first_tokens) / (sent.last - sent.first))


def poisson(begin: float, rate: float) -> Iterator[float]:
    """Moments of arrivals, `rate` a second in the mean, always the same ones."""
    rng = random.Random(ARRIVALS_SEED)
    while True:
        begin += rng.expovariate(rate)
        yield begin
