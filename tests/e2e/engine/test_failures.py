"""What fails is the request that failed: its neighbours have the tokens that they would have had."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.products import rest_slow
from weft import (
    LLM,
    CapacityError,
    EngineConfig,
    Guide,
    GuideError,
    GuideStateError,
    InputError,
    ModelError,
    RequestError,
    SamplingParams,
    Speculation,
    WeftError,
    check,
    launch_hostfunc,
)
from weft.config import HostTasks
from weft.engine.runner.graphs import StepGraphs
from weft.engine.runner.in_flight import InFlightBatch
from weft.engine.runner.prompts import Prompts
from weft.engine.runner.runner import ModelRunner
from weft.engine.scheduler.scheduler import Schedule
from weft.engine.sequence import Sequence
from weft.runtime import cpu

GOOD = Guide.regex(r"[a-z]{5,30}")
PROMPT = "Text: Ada is a painter. Age 31.\nSchema: "
SAMPLING = SamplingParams(max_tokens=12)


class Matcher:
    """A matcher of a user's own: allows everything, and goes wrong in the way that a subclass says."""

    def __init__(self) -> None:
        self.count = 0

    def accept(self, token: int) -> bool:
        self.count += 1
        return True

    def fill(self, row: Any) -> None:
        np.asarray(row)[:] = -1

    def rollback(self, count: int) -> None:
        self.count -= count

    def is_terminated(self) -> bool:
        return False


class RaisesInAccept(Matcher):
    def accept(self, token: int) -> bool:
        if self.count == 3:
            raise RuntimeError("planted in accept")
        return super().accept(token)


class RaisesInFill(Matcher):
    def fill(self, row: Any) -> None:
        if self.count == 4:
            raise RuntimeError("planted in fill")
        super().fill(row)


class RaisesInEnd(Matcher):
    def is_terminated(self) -> bool:
        if self.count == 4:
            raise RuntimeError("planted in is_terminated")
        return False


class RaisesInRollback(Matcher):
    def rollback(self, count: int) -> None:
        raise RuntimeError("planted in rollback")


class Refuses(Matcher):
    """Its mask promises what it does not take."""

    def accept(self, token: int) -> bool:
        return self.count < 3 and super().accept(token)


class DeadEnd(Matcher):
    def fill(self, row: Any) -> None:
        np.asarray(row)[:] = -1 if self.count < 4 else 0


@pytest.fixture(scope="module", params=["plain", "eagle3", "plain polled", "eagle3 polled"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    drafter, _, polled = request.param.partition(" ")
    speculation = Speculation.none() if drafter == "plain" else Speculation.eagle3()
    host_tasks: HostTasks = "polling" if polled else "callback"
    config = EngineConfig(max_batch=4, max_seq_len=256, host_tasks=host_tasks)
    with LLM(device="cpu", speculation=speculation, engine=config) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[int]:
    return llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING).token_ids


@rest_slow
@pytest.mark.parametrize(
    ("broken", "error", "text"),
    [
        (Guide.matcher(RaisesInAccept), GuideStateError, "planted in accept"),
        (Guide.matcher(RaisesInFill), GuideStateError, "planted in fill"),
        (Guide.matcher(RaisesInEnd), GuideStateError, "planted in is_terminated"),
        (Guide.matcher(Refuses), GuideStateError, "token"),
        (Guide.matcher(DeadEnd), GuideStateError, "follow"),
        (Guide.json_schema({"$ref": "#"}), GuideError, ""),
        (Guide.regex("[a&&b]{0}x{0}[^\\x00-\\U0010ffff]"), GuideError, ""),
        (Guide.ebnf('root ::= "a" missing'), GuideError, ""),
    ],
    ids=["accept", "fill", "end", "refused", "dead end", "unsatisfiable", "matches nothing", "ebnf"],
)
def test_a_broken_guide_ends_its_own_request(
    llm: LLM, alone: list[int], broken: Guide, error: type[WeftError], text: str
) -> None:
    guides = [GOOD, broken, None, GOOD]
    outputs = llm.generate([PROMPT] * 4, guide=guides, sampling=SAMPLING)
    failed = outputs[1]
    assert failed.finish_reason == "error"
    assert isinstance(failed.error, error), failed.error
    assert text in str(failed.error)
    assert outputs[0].token_ids == outputs[3].token_ids == alone
    assert outputs[2].error is None
    assert len(outputs[2].token_ids) > 0
    again = llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING)
    assert again.token_ids == alone


def _raises() -> Matcher:
    raise RuntimeError("planted in the factory")


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (Guide.matcher(_raises), "planted in the factory"),
        (Guide.matcher(Matcher), "planted in is_terminated"),
    ],
    ids=["factory", "end"],
)
def test_a_guide_that_can_not_begin_ends_nobody_in_flight(
    broken: Guide, text: str, alone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With overlap it gets the slot of a request that ended, while an iteration of its neighbour is in flight: the
    first of them waits for a capture, the others do not."""

    def is_terminated(_: Matcher) -> bool:
        raise RuntimeError("planted in is_terminated")

    monkeypatch.setattr(Matcher, "is_terminated", is_terminated)
    short = SamplingParams(max_tokens=2)
    with LLM(device="cpu", engine=EngineConfig(max_batch=2, overlap=True)) as llm:
        outputs = llm.generate(
            [PROMPT] * 5,
            guide=[GOOD, None, broken, broken, broken],
            sampling=[SAMPLING, short, *[SAMPLING] * 3],
        )
    assert all(text in str(output.error) for output in outputs[2:])
    assert [outputs[0].error, outputs[1].error] == [None, None]
    assert outputs[0].token_ids == alone


def test_a_matcher_that_cannot_roll_back(alone: list[int]) -> None:
    """Only drafts are rolled back: without a drafter there is nothing to undo."""
    with LLM(device="cpu", speculation=Speculation.eagle3(), engine=EngineConfig(max_batch=2)) as llm:
        outputs = llm.generate([PROMPT] * 2, guide=[GOOD, Guide.matcher(RaisesInRollback)], sampling=SAMPLING)
        assert outputs[0].token_ids == alone
        assert outputs[1].error is None or "planted in rollback" in str(outputs[1].error)


def test_a_single_failed_prompt_raises(llm: LLM) -> None:
    with pytest.raises(GuideStateError, match="planted in accept"):
        llm.generate(PROMPT, guide=Guide.matcher(RaisesInAccept), sampling=SAMPLING)


def test_a_forward_that_raises_ends_the_batch_and_not_the_engine(
    alone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted in the model")

    with LLM(device="cpu", engine=EngineConfig(max_batch=2, graphs="none")) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine.parts.model, "logits", logits)
            outputs = llm.generate([PROMPT] * 2, guide=[GOOD, None], sampling=SAMPLING)
        for output in outputs:
            assert isinstance(output.error, RequestError)
            assert "planted in the model" in str(output.error)
        assert llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING).token_ids == alone


@pytest.mark.parametrize("overlap", [False, True])
def test_a_launch_that_fails_hurts_no_later_one(
    overlap: bool, alone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt in the failed iteration fails too. Its snapshot is gone before the next iteration takes one."""
    admitted: list[Sequence] = []
    launch, run = ModelRunner.launch, StepGraphs.run

    def watched(self: ModelRunner, schedule: Schedule) -> InFlightBatch:
        admitted.extend(schedule.admitted)
        return launch(self, schedule)

    def break_once(self: StepGraphs, *arguments: Any) -> None:
        if len(admitted) == 3:  # the last is in this very step, beside the first
            admitted.clear()
            raise RuntimeError("planted in the launch")
        run(self, *arguments)

    short = SamplingParams(max_tokens=2)
    with LLM(device="cpu", engine=EngineConfig(max_batch=2, overlap=overlap)) as llm:
        llm.generate(PROMPT, guide=GOOD, sampling=short)  # compiled: nobody waits for it below
        monkeypatch.setattr(ModelRunner, "launch", watched)
        monkeypatch.setattr(StepGraphs, "run", break_once)
        outputs = llm.generate([PROMPT] * 3, guide=[GOOD, None, GOOD], sampling=[SAMPLING, short, SAMPLING])
        assert outputs[1].error is None
        for output in (outputs[0], outputs[2]):
            assert "planted in the launch" in str(output.error)
        assert llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING).token_ids == alone


@pytest.mark.parametrize("guide", [None, GOOD])
def test_an_iteration_fails_beside_a_prompt_that_cannot_be_opened(
    guide: Guide | None, alone: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iteration runs while the host handles the other failure. Each request has the error of what it was in."""
    opened, is_broken = Prompts.open, threading.Event()

    def open_once(self: Prompts, batch: InFlightBatch, admitted: list[Sequence]) -> None:
        if not self._prompts:
            return opened(self, batch, admitted)
        is_broken.set()  # so that the forward of this very step fails
        batch.failures.append((admitted, RuntimeError("planted in the opening")))

    with LLM(device="cpu", engine=EngineConfig(max_batch=2, graphs="none", overlap=False)) as llm:
        llm.generate(
            PROMPT, guide=GOOD, sampling=SAMPLING
        )  # compiles the guide, so that no request waits for it
        forward = llm.engine.parts.model.forward

        def break_late(*arguments: Any) -> Any:
            if is_broken.is_set():
                time.sleep(0.2)
                raise RuntimeError("planted in the forward")
            return forward(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Prompts, "open", open_once)
            patch.setattr(llm.engine.parts.model, "forward", break_late)
            pieces = llm.stream(PROMPT, SamplingParams(max_tokens=200, min_tokens=200), guide=guide)
            next(pieces)
            assert "planted in the opening" in str(llm.generate([PROMPT], sampling=SAMPLING)[0].error)
            with pytest.raises(RequestError, match="planted in the forward"):
                list(pieces)
        assert llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING).token_ids == alone


def test_a_callback_of_the_users_own_ends_no_request(llm: LLM, alone: list[int]) -> None:
    """It is raised to the user, and the engine's failures are not."""

    def planted() -> None:
        raise RuntimeError("planted in a callback")

    stream = cpu.Stream()
    with cpu.stream(stream):
        launch_hostfunc(planted)
    while not stream.query():
        pass
    assert llm.generate(PROMPT, guide=GOOD, sampling=SAMPLING).token_ids == alone
    with pytest.raises(RuntimeError, match="planted in a callback"):
        check()
    check()


def test_limits_are_checked_when_given(llm: LLM) -> None:
    with pytest.raises(CapacityError, match="max_seq_len"):
        llm.generate(list(range(5, 25)) * 20)
    with pytest.raises(InputError, match="token id"):
        llm.generate([1, 10**6])
    with pytest.raises(InputError, match="max_tokens"):
        SamplingParams(max_tokens=0)
    with pytest.raises(InputError, match="temperature"):
        SamplingParams(temperature=-1)
    with pytest.raises(InputError, match="seed"):
        SamplingParams(seed=2**70)
    with pytest.raises(InputError, match="num_draft_tokens"):
        Speculation.eagle3(num_draft_tokens=9)
    with pytest.raises(InputError, match="num_draft_tokens"):
        Speculation.eagle3(num_draft_tokens=0)
    with pytest.raises(InputError, match="guide has 1 entries for 2"):
        llm.generate([PROMPT, PROMPT], guide=[GOOD])
    with pytest.raises(InputError, match="max_batch"):
        EngineConfig(max_batch=0)
    with pytest.raises(ModelError, match="no such directory"):
        LLM("/nowhere/at/all")


def test_an_answer_is_cut_at_the_context(llm: LLM) -> None:
    output = llm.generate(PROMPT, guide=Guide.regex("[a-z]*x"), sampling=SamplingParams(max_tokens=10_000))
    assert output.finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.token_ids) == 256
    assert output.stats.guided_valid is False
