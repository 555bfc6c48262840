"""The soak with faults planted in it: whoever a fault touches ends with an error, everybody else has his own answer,
the executor goes on serving, and nothing is left behind.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from soak.clients import Account, register, serve
from soak.leaks import Held
from soak.questions import Pool
from soak.server_configs import STATIC, UTILIZATION, Way, way
from soak.workload import Errand, draw
from support.planting import at_every_run
from weft import Guide
from weft.config import Graphs
from weft.engine.engine import Engine
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.scheduler.scheduler import Schedule
from weft.executor import (
    Executor,
    ExecutorConfig,
    GuidedDecodingParams,
    KvCacheConfig,
    Request,
    Response,
    SamplingConfig,
)

# -- What is planted to go wrong while an executor serves


class PlantedError(Exception):
    """What everything planted raises."""


class AnyToken:
    """A matcher that allows every token but the end, and whose subclasses go wrong after `place` tokens."""

    def __init__(self, place: int, end_id: int) -> None:
        self.place, self.end_id = place, end_id
        self.count = 0

    def accept(self, token: int) -> bool:
        self.count += 1
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        row[:] = -1
        row.view(np.uint32)[self.end_id // 32] &= ~np.uint32(1 << self.end_id % 32)

    def rollback(self, count: int) -> None:
        self.count -= count

    def is_terminated(self) -> bool:
        return False


class RaisesInAccept(AnyToken):
    def accept(self, token: int) -> bool:
        if self.count == self.place:
            raise PlantedError("planted in accept")
        return super().accept(token)


class RaisesInFill(AnyToken):
    def fill(self, row: NDArray[np.int32]) -> None:
        if self.count == self.place:
            raise PlantedError("planted in fill")
        super().fill(row)


class RaisesInEnd(AnyToken):
    def is_terminated(self) -> bool:
        if self.count == self.place:
            raise PlantedError("planted in is_terminated")
        return False


class Refuses(AnyToken):
    """Its mask promises what it does not take."""

    def accept(self, token: int) -> bool:
        return self.count < self.place and super().accept(token)


class DeadEnd(AnyToken):
    def fill(self, row: NDArray[np.int32]) -> None:
        if self.count < self.place:
            super().fill(row)


def _raises() -> Any:
    raise PlantedError("planted in the factory")


def broken_guides(rng: random.Random, end_id: int) -> dict[str, tuple[Guide, str]]:
    """Guides by name whose requests fail, and what is said then."""
    made: dict[str, tuple[Guide, str]] = {
        "broken factory": (Guide.matcher(_raises), "planted in the factory"),
        "no matcher": (Guide.matcher(object), "can't be a matcher"),
    }
    for kind, error in [
        (RaisesInAccept, "planted in accept"),
        (RaisesInFill, "planted in fill"),
        (RaisesInEnd, "planted in is_terminated"),
        (Refuses, "token"),
        (DeadEnd, "follow|no token"),
    ]:
        for place in rng.sample(range(8), 2):
            made[f"{kind.__name__} at {place}"] = Guide.matcher(_maker(kind, place, end_id)), error
    return made


def _maker(kind: type[AnyToken], place: int, end_id: int) -> Callable[[], AnyToken]:
    return lambda: kind(place, end_id)


def raising_processor(place: int, *, allows_capture: bool) -> Callable[..., None]:
    """A logits post-processor that raises in its call of this number, from 0."""
    calls = itertools.count()

    def raises(*_: object) -> None:
        if next(calls) == place:
            raise PlantedError("planted in a processor")

    raises.allows_capture = allows_capture  # type: ignore[attr-defined]
    return raises


class FailingForward:
    """In the place of a model's forward: every now and then it raises, when it runs or a graph does that captured it.
    `touched` are the requests that were served then, or launched before the engine looked for errors again."""

    def __init__(self, executor: Executor, rng: random.Random, share: float) -> None:
        self.engine: Engine = executor.client.engine
        self.touched: set[int] = set()
        self.num_raised = 0
        self._rng, self._share = rng, share
        self._forward = self.engine.parts.model.forward
        self._calls_left = -1
        self._is_unseen = False
        self._output: Any = self.engine.output
        self._runner: Any = self.engine.runner
        self._begin, self._launch = self._output.begin, self._runner.launch
        self._output.begin, self._runner.launch = self._begin_step, self._launch_step

    def raise_in(self, number: int) -> None:
        """Raise in the run of this number from now on, too."""
        self._calls_left = number

    def stop(self) -> None:
        """Raise no more, in the graphs that hold it either."""
        self._share, self._calls_left = 0.0, -1
        del self._output.begin, self._runner.launch

    def __call__(self, *args: Any) -> Any:
        at_every_run(self._strike)
        return self._forward(*args)

    def _strike(self) -> None:
        self._calls_left -= 1
        if self._calls_left == 0 or self._rng.random() < self._share:
            self.num_raised += 1
            self._is_unseen = True
            self.touched |= {request.id for request in self._served()}
            raise PlantedError(f"planted in forward, number {self.num_raised}")

    def _served(self) -> list[Any]:
        flights = [sequence for flight in self.engine.output.in_flight for sequence in flight.sequences]
        return [*self.engine.running, *flights]

    def _begin_step(self, *args: Any) -> None:
        self._is_unseen = False
        self._begin(*args)

    def _launch_step(self, schedule: Schedule) -> InFlightBatch:
        batch: InFlightBatch = self._launch(schedule)
        if self._is_unseen:  # it raised after the step had looked for errors
            self.touched |= {request.id for request in schedule.sequences}
        return batch


# -- tests

pytestmark = [pytest.mark.slow, pytest.mark.serial]

REQUESTS = 60
WAYS = {
    "plain": way(max_batch_size=4),
    "eagle3, few pages": way("eagle3", policy=UTILIZATION, page_size=8, pages=26),
    "forced and n-grams, eager": way("forced+ngram", graphs="none"),
    "random mtp, split": way("random mtp", graphs="split", overlap=False),
    "given and eagle3, static": way("given+eagle3", policy=STATIC, max_batch_size=4),
}


def check_served(
    pool: Pool, drafters: Path, way: Way, errands: list[Errand], guides: dict[str, Guide]
) -> None:
    """Every errand comes to its own end, `guides` being registered beside the pool's, and nothing is held behind it."""
    held = Held()
    with Executor(pool.checkpoint.path, way.config(drafters), device="cpu") as executor:
        register(executor, pool)
        for key, guide in guides.items():
            executor.register_guide(key, guide)
        accounts = serve(executor, pool, errands, 1, takes_any=False)
        for account in accounts:
            account.check()
        held.check_idle(executor)
        del accounts, account
    del executor
    held.check_end()


@pytest.mark.parametrize("name", WAYS)
def test_a_broken_matcher_is_its_own_request(pool: Pool, drafters: Path, name: str) -> None:
    rng, way = random.Random(name), WAYS[name]
    guides = broken_guides(rng, next(iter(pool.checkpoint.end_ids)))
    errands = [
        under_guide(errand, *rng.choice([(key, error) for key, (_, error) in guides.items()]))
        if rng.random() < 0.3
        else errand
        for errand in draw(rng, pool, REQUESTS, **way.terms)
    ]
    check_served(pool, drafters, way, errands, {key: guide for key, (guide, _) in guides.items()})


@pytest.mark.parametrize("name", WAYS)
def test_a_processor_that_raises_ends_its_own_request(pool: Pool, drafters: Path, name: str) -> None:
    rng, way = random.Random(name), WAYS[name]
    errands = [
        broken(
            errand,
            "logits processor 'logits_post_processor' raised PlantedError: planted in a processor",
            logits_post_processor=any_raising_processor(rng),
            end_id=-1,
        )
        if rng.random() < 0.25
        else errand
        for errand in draw(rng, pool, REQUESTS, **way.terms)
    ]
    check_served(pool, drafters, way, errands, {})


@pytest.mark.parametrize("name", WAYS)
def test_a_forward_that_raises_ends_those_in_it(pool: Pool, drafters: Path, name: str) -> None:
    rng, way = random.Random(name), WAYS[name]
    errands = draw(rng, pool, REQUESTS, **way.terms)
    held = Held()
    with Executor(pool.checkpoint.path, way.config(drafters), device="cpu") as executor:
        register(executor, pool)
        failing = FailingForward(executor, rng, 0.08)
        model: Any = executor.client.engine.parts.model
        model.forward = failing
        accounts = serve(executor, pool, errands, 1, takes_any=False)
        del model.forward
        failing.stop()
        held.check_idle(executor)
        failed = [account for account in accounts if is_planted(account)]
        assert failing.num_raised >= 2 and failed
        for account in accounts:
            if account not in failed:
                account.check()
        for account in failed:
            ids = range(account.request_id, account.request_id + account.errand.num_sequences)
            assert failing.touched & set(ids), f"{account} was not served when a forward raised"
        again = serve(executor, pool, draw(rng, pool, 12, **way.terms), 2, takes_any=False)
        for account in again:
            account.check()
        del accounts, failed, again, account, failing, model
    del executor
    held.check_end()


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_split_iterations_go_on_behind_one_that_failed(pool: Pool, number: int) -> None:
    """The forward that raises is in the prompt, the warm-up, the capture or an iteration, with the host between."""
    case = next(case for case in pool.cases if case.guide is None and case.sampling.temperature == 0)
    request = Request(case.prompt, 12, logits_post_processor=lambda *_: None)

    def ask(executor: Executor) -> str | list[list[int]]:
        (response,) = executor.await_responses(executor.enqueue_request(request), timeout=60)
        return response.error_msg if response.has_error() else response.result.output_token_ids

    with Executor(pool.checkpoint.path, device="cpu") as executor:
        expected = ask(executor)
    with Executor(pool.checkpoint.path, device="cpu") as executor:
        failing = FailingForward(executor, random.Random(0), 0.0)
        failing.raise_in(number)
        model: Any = executor.client.engine.parts.model
        model.forward = failing
        assert "planted in forward" in str(ask(executor))
        assert [ask(executor) for _ in range(3)] == [expected] * 3


@pytest.mark.parametrize("graphs", ["one", "split"])
def test_a_failed_iteration_is_not_taken_for_the_fault_of_a_prompt(pool: Pool, graphs: Graphs) -> None:
    """A prompt that the host waits for is read behind an iteration of another request, whose forward raises."""
    case = next(
        c for c in pool.cases if c.guide is None and c.sampling.temperature == 0 and len(c.prompt) > 20
    )
    waited_for = {"logits_post_processor": lambda *_: None, "priority": 0.0}
    requests = [Request(case.prompt[:18], 12), Request(case.prompt[:19], 12, **waited_for)]
    cache = KvCacheConfig(
        enable_block_reuse=False, tokens_per_block=16
    )  # so that the second prompt takes two turns
    config = ExecutorConfig(max_batch_size=2, max_num_tokens=18, graphs=graphs, kv_cache_config=cache)
    with Executor(pool.checkpoint.path, config, device="cpu") as executor:

        def ask() -> list[str | list[list[int]]]:
            answers = executor.await_responses(executor.enqueue_requests(requests), timeout=60)
            return [r.error_msg if r.has_error() else r.result.output_token_ids for (r,) in answers]

        failing = FailingForward(executor, random.Random(0), 0.0)
        model: Any = executor.client.engine.parts.model
        model.forward = failing
        expected = ask()
        for number in range(1, 12):
            failing.raise_in(number)
            answers = ask()
            planted = [isinstance(answer, str) and "planted in forward" in answer for answer in answers]
            assert any(planted), f"call {number}: {answers}"
            for answer, wanted, has_failed in zip(answers, expected, planted, strict=True):
                assert has_failed or answer == wanted, f"call {number}"


def test_a_prompt_that_failed_does_not_spoil_what_it_shares(pool: Pool) -> None:
    """With overlap it is decoded behind before the host knows; that must not write into the pages that it found."""
    case = next(c for c in pool.cases if c.guide is None and len(c.prompt) > 50)
    long, short = Request(case.prompt, 4), Request(case.prompt[:2], 12)
    config = ExecutorConfig(
        max_batch_size=1, overlap=True, graphs="none", kv_cache_config=KvCacheConfig(tokens_per_block=16)
    )
    with Executor(pool.checkpoint.path, config, device="cpu") as executor:
        engine = executor.client.engine

        def ask(request: Request) -> Response:
            return executor.await_responses(executor.enqueue_request(request), timeout=60)[0]

        ask(long)
        ask(short)  # leaves its slot in the middle of the other's first page
        found = engine.kv.begin(case.prompt, len(case.prompt))
        assert found is not None and found.num_reused >= 48
        shared = found.pages[:3]
        engine.kv.end(found)
        before = engine.parts.kv.groups[0][:, shared].clone()
        failing = FailingForward(executor, random.Random(0), 0.0)
        failing.raise_in(1)
        model: Any = engine.parts.model
        model.forward = failing
        assert "planted in forward" in ask(long).error_msg
        ask(short)
        assert torch.equal(engine.parts.kv.groups[0][:, shared], before)


def under_guide(errand: Errand, name: str, error: str) -> Errand:
    """The same errand under a guide that fails it."""
    return broken(errand, error, guided_decoding_params=GuidedDecodingParams.handle(name))


def broken(errand: Errand, error: str, **changed: Any) -> Errand:
    """The same errand with something that fails it, and with nothing that could end it before."""
    request, case = errand.request, errand.case
    kept = {
        name: getattr(request, name) for name in ("streaming", "priority", "client_id", "num_draft_tokens")
    }
    sampling = SamplingConfig(temperature=1.0, seed=case.number)
    broken = Request(case.prompt, 20, sampling_config=sampling, **kept, **changed)
    return replace(errand, request=broken, fate="invalid", error=error)


def any_raising_processor(rng: random.Random) -> Callable[..., None]:
    """One that raises in one of its first calls; what is captured has three: for the prompt, a warm-up, the capture."""
    allows_capture = rng.random() < 0.4
    return raising_processor(rng.randrange(2 if allows_capture else 6), allows_capture=allows_capture)


def is_planted(account: Account) -> bool:
    return account.error is not None and "planted in forward" in account.error
