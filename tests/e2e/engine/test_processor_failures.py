"""Logits processors that fail end their own requests, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from support.engine.processors import GREEDY, Steer, answers, one, steer
from support.engine.requests import make_request, run
from support.products import rest_slow
from weft import LLM
from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.engine.runner import graphs
from weft.engine.runner.step import Iteration, decode_step
from weft.engine.scheduler.scheduler import Schedule
from weft.errors import GraphError, RequestError


def raise_late(_: int, logits: Tensor, tokens: list[list[int]], *__: object) -> None:
    if len(tokens[0]) > raise_late.limit:  # type: ignore[attr-defined]
        logits.fill_(float("nan"))
        raise ValueError("no more of this")


def raise_batched(ids: list[int], logits: list[Tensor], tokens: list[Any], *_: object) -> None:
    raise ValueError("no more of this")


def raise_captured(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
    raise ValueError("no more of this")


raise_captured.allows_capture = True  # type: ignore[attr-defined]


def exit_alone(*_: object) -> None:
    sys.exit("no more of this")


def exit_batched(*_: object) -> None:
    raise KeyboardInterrupt


def exit_captured(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> None:
    sys.exit("no more of this")


exit_captured.allows_capture = True  # type: ignore[attr-defined]


def wrong_shape(_: int, logits: Tensor, *__: object) -> Tensor:
    return logits[..., :5]


def wrong_count(*_: object) -> list[None]:
    return []


def wrong_captured(rows: ProcessorRows, logits_BTV: Tensor, stream: object) -> Tensor:
    return logits_BTV[:, :, :5]


wrong_captured.allows_capture = True  # type: ignore[attr-defined]


@rest_slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (one(raise_late), "logits processor 'ours' raised ValueError: no more of this"),
        (one(raise_batched, is_batched=True), "'ours' raised ValueError: no more"),
        (one(raise_captured), "'ours' raised ValueError: no more"),
        (one(exit_alone), "'ours' raised SystemExit: no more of this"),
        (one(exit_batched, is_batched=True), "'ours' raised KeyboardInterrupt"),
        (one(exit_captured), "'ours' raised SystemExit: no more of this"),
        (one(wrong_shape), "returned a tensor .*it may return None or a tensor of"),
        (one(wrong_count, is_batched=True), "returned list; it may return None or a list of"),
        (one(wrong_captured), "returned a tensor .*it may return None or a tensor"),
    ],
)
def test_a_failure_ends_its_own_requests_alone(
    make_llm: Callable[..., LLM], prompts: list[str], processor: LogitsProcessor, message: str, overlap: bool
) -> None:
    llm = make_llm("eagle3", overlap=overlap)
    expected = answers(llm, prompts, None)
    raise_late.limit = len(llm.tokenizer.encode(prompts[0])) + 5  # type: ignore[attr-defined]
    for _ in range(2):
        requests = [
            make_request(llm, prompts[0], GREEDY, processor=processor),
            make_request(llm, prompts[1], GREEDY),
            make_request(llm, prompts[2], GREEDY, processor=one(Steer())),
        ]
        run(llm, requests)
        with pytest.raises(RequestError, match=message):
            raise requests[0].output.error or AssertionError
        assert requests[1].output.token_ids == expected[1]
        assert requests[2].output.token_ids == answers(llm, prompts, one(steer))[2]


def test_what_can_not_be_captured_ends_its_own_requests_alone(
    make_llm: Callable[..., LLM], prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA a function may run well and still not be captured: one that reads a device value, say."""
    llm = make_llm("eagle3")
    expected = answers(llm, prompts, None)

    def refuse(iteration: Iteration) -> None:
        if iteration.plan.processors.captured:
            raise GraphError("the capture failed")
        decode_step(iteration)

    requests = [
        make_request(llm, prompts[i], GREEDY, processor=one(Steer()) if i == 1 else None) for i in range(3)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "decode_step", refuse)
        run(llm, requests)
    with pytest.raises(RequestError, match="'ours' raised GraphError: the capture failed"):
        raise requests[1].output.error or AssertionError
    assert [requests[i].output.token_ids for i in (0, 2)] == [expected[i] for i in (0, 2)]


def test_who_broke_a_capture_is_who_raised_first(
    make_llm: Callable[..., LLM], prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one raises may end the capture, and the error that comes of it is that of whatever comes next."""
    llm = make_llm("eagle3")
    expected = answers(llm, prompts, one(Steer()))

    def break_it(iteration: Iteration) -> None:
        for processor in iteration.plan.processors.captured:
            if processor.name == "breaks":
                processor.failure = ValueError("it reads a device value")
                raise GraphError("the capture failed: an earlier call invalidated it")
        decode_step(iteration)

    breaks = LogitsProcessor("breaks", Steer())
    requests = [
        make_request(llm, prompts[i], GREEDY, processor=breaks if i == 1 else one(Steer())) for i in range(3)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "decode_step", break_it)
        run(llm, requests)
    with pytest.raises(RequestError, match="'breaks' raised ValueError: it reads a device value") as error:
        raise requests[1].output.error or AssertionError
    assert isinstance(error.value.__cause__, ValueError)
    assert [requests[i].output.token_ids for i in (0, 2)] == [expected[i] for i in (0, 2)]


def test_one_that_fails_later_leaves_what_it_gave(make_llm: Callable[..., LLM], prompts: list[str]) -> None:
    llm = make_llm()
    start = len(llm.tokenizer.encode(prompts[0]))

    def count_down(_: int, logits: Tensor, tokens: list[list[int]], *__: object) -> None:
        if len(tokens[0]) == start + 4:
            raise RuntimeError("at the fifth")

    request = make_request(llm, prompts[0], GREEDY, processor=one(count_down))
    run(llm, [request])
    assert isinstance(request.output.error, RequestError)
    assert request.output.token_ids == answers(llm, prompts, None)[0][:4]


def test_a_prompt_that_ends_while_results_are_awaited_is_not_read_further(
    make_llm: Callable[..., LLM], prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processor of a new prompt makes the step wait for the results in flight. These may end a sequence whose
    prompt the step was to go on reading."""
    llm = make_llm(overlap=True, max_num_tokens=32)
    expected = answers(llm, prompts, one(steer))
    long = make_request(llm, [20 + 7 * i % 300 for i in range(120)], GREEDY)
    llm.engine.submit(long)
    llm.engine.step()  # reads the first part
    assert 0 < long.num_read < 120 and long.num_in_flight
    waits = llm.engine.runner.waits_for_results

    def end_and_wait(schedule: Schedule) -> bool:
        """Ends the long prompt when the step has decided to read on, as its failure in flight would."""
        if waits(schedule):
            assert any(sequence is long for sequence, _ in schedule.reading)
            monkeypatch.setattr(llm.engine.output, "drain", drain_and_end)
            return True
        return False

    def drain_and_end(*args: Any) -> None:
        monkeypatch.undo()
        llm.engine.output.drain(*args)
        llm.engine.cancel(long)

    monkeypatch.setattr(llm.engine.runner, "waits_for_results", end_and_wait)
    new = make_request(llm, prompts[1], GREEDY, processor=one(steer))
    llm.engine.submit(new)
    while not long.is_finished:
        llm.engine.step()
    while not new.is_finished:
        llm.engine.step()
    assert new.output.error is None
    assert sorted(llm.engine.scheduler.capacity.free_slots) == [0, 1, 2, 3]
    assert answers(llm, prompts, one(steer)) == expected
